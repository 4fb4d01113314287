"""Calls of Functionary."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

CALLS: Calls = (("find", {"where": "</function>"}), ("ping", {}))
V31 = '<function=find>{"where": "</function>"}</function>\n<function=ping>{}</function>'


@pytest.mark.parametrize("form", ["functionary_v31", "functionary_v32"])
def test_calls_in_tags_are_read(form: str) -> None:
    assert read("I look. " + V31, tool_calls=form) == Parsed("I look.", "", CALLS)
    assert read(V31.removesuffix("</function>"), tool_calls=form) == Parsed("", "", CALLS)


@pytest.mark.parametrize("form", ["functionary_v31", "functionary_v32"])
@pytest.mark.parametrize(
    "text", ["<function=name> is how", "<function=find>x</function>", '<function=find>{"wh']
)
def test_what_is_no_call_stays_text(form: str, text: str) -> None:
    assert read(text, tool_calls=form) == Parsed(text)


def test_parts_are_distinguished_by_their_recipient() -> None:
    text = 'all\nI look.>>>find\n{"where": "</function>"}>>>ping\n{}'
    expected = Parsed("I look.", "", CALLS)
    assert read(text, tool_calls="functionary_v32", tail="\n\n>>>") == expected
    assert read(">>>" + text, tool_calls="functionary_v32", tail="\n\n") == expected


def test_a_prompt_of_a_shell_is_no_header() -> None:
    text = "So:\n>>> find\n>>>find(1)\n>>>ping\nno"
    assert read("all\n" + text, tool_calls="functionary_v32", tail=">>>") == Parsed(text)


def test_recipients_may_stand_in_markers() -> None:
    part = "<|from|>assistant\n<|recipient|>"
    text = f'{part}all\n<|content|>I look.\n{part}find\n<|content|>{{"depth": 1}}<|stop|>'
    assert read(text, tool_calls="functionary_v32") == Parsed(
        "I look.", "", (("find", {"depth": 1}),)
    )


def test_without_tools_the_answer_still_has_no_header() -> None:
    parsed = read("all\nSo.", tool_calls="functionary_v32", tail=">>>", tools={})
    assert parsed == Parsed("So.")
