"""Small conversations show what a template does."""

from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.probe import (
    ANSWER,
    FUNCTION,
    NAME,
    SYSTEM,
    USER,
    Probe,
    assistant,
    call,
    result,
    system,
    text_parts,
    user,
)
from tests.node.prompt.template.samples import LISTED, OPEN, POOR


def probe_of(text: str, only_parts: frozenset[str] = frozenset()) -> Probe:
    return Probe(ChatTemplate(text, {}), only_parts)


def test_what_a_template_refuses_has_no_text() -> None:
    assert probe_of(POOR).text([system(), user()]) is None
    assert probe_of(POOR).text([user()]) == f"<|begin|>user\n{USER}<|end|>\n<|begin|>assistant\n"
    assert probe_of(POOR).text([user(), assistant()]) == (
        f"<|begin|>user\n{USER}<|end|>\n<|begin|>assistant\n{ANSWER}<|end|>\n"
    )


def test_words_are_shown_in_their_order() -> None:
    probe = probe_of(OPEN)
    assert probe.shows([system(), user()], SYSTEM, USER)
    assert not probe.shows([system(), user()], USER, SYSTEM)
    assert not probe.shows([user()], NAME)
    assert probe.shows([user()], NAME, USER, tools=FUNCTION)
    assert probe.shows([user(), assistant("", tool_calls=[call({})]), result()], USER, NAME)


def test_roles_may_be_given_parts_only() -> None:
    listed = text_parts(USER)
    assert listed == [{"type": "text", "text": USER}]
    spelled = probe_of(OPEN, frozenset({"user"})).text([system(), user()])
    assert spelled == probe_of(OPEN).text([system(), user(listed)])
    assert probe_of(LISTED, frozenset({"user"})).shows([user(), user(listed)], USER, USER)


def test_a_template_may_want_a_list_without_tools() -> None:
    probe = probe_of("{{ tools | length }}" + OPEN)
    assert probe.empty_tools
    assert probe.shows([user()], "0", USER)
    assert not probe_of(OPEN).empty_tools
