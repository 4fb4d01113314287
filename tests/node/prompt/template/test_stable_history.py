"""Changed programs render a message the same however many follow it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.prompt.template.chat import ChatRenderer
from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.stable_history import EMPTY_REASONING, stabilized
from node.request import Message, TemplateOptions, ToolCall
from tests.node.prompt.template.samples import LAST_USER, OPEN, WEATHER, asking

USER = Message("user", "hello")
CALLING = Message("assistant", "", "", (ToolCall("call12345", "weather", "{}"),))
RESULT = Message("tool", "sunny", tool_call_id="call12345", name="weather")
ANSWER = Message("assistant", "I think so")
SESSION = (USER, CALLING, RESULT, ANSWER, replace(USER, content="more"), CALLING, RESULT)

# Shows the markers of reasoning behind the last user's message, whether there is any or not.
MARKED = LAST_USER.replace(
    "if m.reasoning_content and loop.index0", "if m.role == 'assistant' and loop.index0"
).replace(
    "assistant\n{% endif %}",
    "assistant\n<think>\n{{ '\n</think>\n\n' if enable_thinking is false }}{% endif %}",
)
# The same in two steps, with the index as the value of an object of its own.
STEPPED = (
    MARKED.replace("namespace(last=-1)", "namespace(value=-1)")
    .replace("ns.last", "last_user_idx.value")
    .replace("set ns =", "set last_user_idx =")
    .replace(
        "{% if m.role == 'assistant' and loop.index0 > last_user_idx.value %}",
        "{% set behind = loop.index0 > last_user_idx.value %}"
        "{% if m.role == 'assistant' and behind %}",
    )
)
MARKED = MARKED.replace("ns.last", "ns.last_query_index").replace("(last=", "(last_query_index=")
# Tools stand before the last user's message.
MOVING = (
    "{% set user_messages = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}{% if tools and (m == user_messages[-1]) %}<tools>{{ tools | tojson }}"
    "</tools>{% endif %}" + OPEN.partition("{% for m in messages %}")[2]
)
KEEPING = LAST_USER.replace(
    "and loop.index0 > ns.last", "and (preserve_thinking or loop.index0 > ns.last)"
)
# Renders the markers of all responses once reasoning is kept.
MARKED_KEEPING = MARKED.replace(
    "and loop.index0 > ns.last_query_index",
    "and ((preserve_thinking is defined and preserve_thinking is true)"
    " or (loop.index0 > ns.last_query_index))",
)
# Thinks only if thinking is on, and otherwise closes the markers itself.
OPT_IN = MARKED.replace("if enable_thinking is false", "if not thinking")
# Leaves results and calls out before the last user's message.
SPARING = (
    LAST_USER.replace("(last=", "(last_user_index=")
    .replace("ns.last", "ns.last_user_index")
    .replace(
        "{{ m.content }}",
        "{% if m.role == 'tool' %}{% if loop.index0 > ns.last_user_index %}{{ m.content }}"
        "{% else %}[omitted]{% endif %}{% else %}{{ m.content }}{% endif %}",
    )
)
CALLS_SPARING = SPARING.replace(
    "{% for c in m.tool_calls or [] %}",
    "{% set is_shown = m.role == 'assistant' and loop.index0 > ns.last_user_index %}"
    "{% for c in (m.tool_calls or []) if is_shown %}",
)


def prompts(
    text: str, session: Sequence[Message] = SESSION, *, normalize: bool = True, **options: Any
) -> list[str]:
    """Returns the prompt of each turn."""
    chat = ChatRenderer(ChatTemplate(text, {}, normalize=normalize), "hermes")
    counts = [at for at, each in enumerate(session, 1) if each.role in ("user", "tool")]
    return [
        chat.apply(
            asking(tools=(WEATHER,), template=TemplateOptions(**options)),
            session[:count],
            generation=True,
        )
        for count in counts
    ]


def extends(texts: Sequence[str]) -> bool:
    """True if each prompt begins with the one before it, without the generation prompt."""
    ends = [text.rindex("<|begin|>assistant") for text in texts]
    return all(
        later.startswith(text[:end])
        for text, end, later in zip(texts, ends, texts[1:], strict=False)
    )


def thoughtful(session: Sequence[Message]) -> list[Message]:
    return [replace(each, reasoning="so") if each.role == "assistant" else each for each in session]


@pytest.mark.parametrize("text", [MARKED, STEPPED])
@pytest.mark.parametrize("thinking", [None, True, False])
def test_an_answer_without_reasoning_is_spelled_the_same_before_and_behind_a_user(
    text: str, thinking: bool | None
) -> None:
    assert not extends(prompts(text, normalize=False, enable_thinking=thinking))
    assert extends(prompts(text, enable_thinking=thinking))


@pytest.mark.parametrize("text", [MARKED, STEPPED])
def test_empty_markers_are_shown_where_the_prompt_closes_them_itself(text: str) -> None:
    off = prompts(text, enable_thinking=False)
    assert off[-1].count("<think>\n\n</think>") == 4
    # All of the prompt is then repeated, and the answer behind it.
    assert all(later.startswith(text) for text, later in zip(off, off[1:], strict=False))
    assert "</think>" not in prompts(text, enable_thinking=True)[-1]


@pytest.mark.parametrize("text", [MARKED, STEPPED])
def test_reasoning_stays_within_a_loop_of_calls_and_goes_as_the_author_has_it(text: str) -> None:
    session = thoughtful(SESSION)
    ours, authors = prompts(text, session), prompts(text, session, normalize=False)
    assert ours == authors
    assert ours[1].count("<think>\nso\n</think>") == 1
    assert "so\n</think>" not in ours[2]


def test_reasoning_in_the_content_is_left_to_the_author() -> None:
    inside = replace(CALLING, content="<think>so</think>")
    session = (USER, inside, RESULT, ANSWER, USER)
    assert prompts(MARKED, session) == prompts(MARKED, session, normalize=False)


def test_an_answer_that_goes_on_is_spelled_as_the_author_has_it() -> None:
    chats = [
        ChatRenderer(ChatTemplate(MARKED, {}, normalize=each), "hermes") for each in (True, False)
    ]
    request = asking(USER, ANSWER, continue_final=True)
    ours, authors = (chat.render(request).text for chat in chats)
    assert ours == authors
    assert "<think>\n\n</think>" in ours


def test_tools_stay_before_the_first_user() -> None:
    assert not extends(prompts(MOVING, normalize=False))
    texts = prompts(MOVING)
    assert extends(texts)
    assert all(text.startswith("<tools>") for text in texts)
    assert all(text.count("<tools>") == 1 for text in texts)
    assert texts[0] == prompts(MOVING, normalize=False)[0]


def test_a_template_is_set_to_keep_the_reasoning_of_sessions_with_tools() -> None:
    session = thoughtful(SESSION)
    assert not extends(prompts(KEEPING, session, normalize=False))
    texts = prompts(KEEPING, session)
    assert extends(texts)
    assert texts[-1].count("so\n</think>") == 3
    # The client's setting takes precedence.
    overridden = prompts(KEEPING, session, kwargs={"preserve_thinking": False})
    assert overridden == prompts(KEEPING, session, normalize=False)


@pytest.mark.parametrize("thinking", [None, True, False])
def test_the_first_reasoning_that_is_sent_back_changes_no_earlier_answer(
    thinking: bool | None,
) -> None:
    late = replace(CALLING, reasoning="so")
    session = (USER, ANSWER, USER, late, RESULT, ANSWER, USER)
    assert not extends(prompts(MARKED_KEEPING, session, normalize=False))
    texts = prompts(MARKED_KEEPING, session, enable_thinking=thinking)
    assert extends(texts)
    # Reasoning stays once it is there.
    assert texts[-1].count("<think>\nso\n</think>") == 1
    assert texts[-1].count("<think>\n\n</think>") == (3 if thinking is False else 0)


@pytest.mark.parametrize("options", [{}, {"kwargs": {"thinking": False}}])
def test_a_prompt_that_closes_the_markers_by_itself_shows_that_thinking_is_off(
    options: dict[str, Any],
) -> None:
    off = prompts(OPT_IN, **options)
    assert all(later.startswith(text) for text, later in zip(off, off[1:], strict=False))


@pytest.mark.parametrize("options", [{"kwargs": {"thinking": True}}, {"enable_thinking": True}])
def test_thinking_under_a_name_of_the_templates_own_is_thinking(options: dict[str, Any]) -> None:
    texts = prompts(OPT_IN, **options)
    assert extends(texts)
    assert "</think>" not in texts[-1]


def test_how_prompts_end_is_known_of_many_variables() -> None:
    chat = ChatRenderer(ChatTemplate(OPT_IN, {}), "hermes")
    for number in range(200):
        options = TemplateOptions(kwargs={"thinking": number % 2 == 0, "n": number})
        text = chat.apply(asking(template=options), [USER, ANSWER, USER], generation=True)
        assert ("</think>" in text) == (number % 2 == 1)


def test_results_stay_where_the_author_shows_them() -> None:
    loop = [USER, CALLING, RESULT]
    [_, ours] = prompts(SPARING, loop)
    assert "sunny" in ours
    assert "[omitted]" not in ours
    assert prompts(SPARING) == prompts(SPARING, normalize=False)


def test_a_change_that_loses_calls_is_left_out() -> None:
    assert stabilized(CALLS_SPARING) != CALLS_SPARING
    texts = prompts(CALLS_SPARING)
    assert texts == prompts(CALLS_SPARING, normalize=False)
    assert '{"name": "weather"' in texts[1]


def test_reasoning_of_a_plain_chat_goes_as_the_author_has_it() -> None:
    chat = ChatRenderer(ChatTemplate(KEEPING, {}), "hermes")
    messages = thoughtful((USER, ANSWER, replace(USER, content="more")))
    assert "<think>" not in chat.apply(asking(), messages, generation=True)


def test_a_prompt_has_the_day_and_not_the_time() -> None:
    text = (
        "{{ strftime_now('%d %b, %H:%M') }}|{{ strftime_now(\"%c\") }}|{{ strftime_now('%I %p') }}"
    )
    days = "{{ strftime_now('%d %b') }}|{{ strftime_now(\"%a %b %d %Y\") }}|{{ strftime_now('') }}"
    assert stabilized(text) == days
    [shown] = prompts(text, [USER])
    assert re.fullmatch(r"\d\d \w{3}\|\w{3} \w{3} \d\d \d{4}\|", shown)


@pytest.mark.parametrize(
    ("form", "day"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"),
        ("%Y-%m-%d %H:%M UTC", "%Y-%m-%d"),
        ("%H:%M, %A", "%A"),
        ("%A, %H:%M:%S %Z, %d.%m.%Y", "%A, %d.%m.%Y"),
        ("%Y年%m月%d日 %H:%M", "%Y年%m月%d日"),
        ("%d %B %Y", "%d %B %Y"),
        # No word or bracket is left without its time.
        ("%Y-%m-%d at %H h", "%Y-%m-%d at %H h"),
        ("%Y-%m-%d at %H:%M", "%Y-%m-%d at %H:%M"),
        ("%d.%m.%Y (%H:%M)", "%d.%m.%Y (%H:%M)"),
        ("%d.%m.%Y %H时%M分", "%d.%m.%Y %H时%M分"),
    ],
)
def test_a_time_is_cut_off_cleanly_or_not_at_all(form: str, day: str) -> None:
    assert stabilized(f"strftime_now('{form}')") == f"strftime_now('{day}')"


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(messages | length) %}{% if loop.index0 > last_user %}{% endif %}"
        "{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls %}{{ loop.index0 > ns.last_user_index }}"
        "{% endfor %}{% endfor %}",
        "{% for m in messages %}{% endfor %}{% endfor %}{{ loop.index0 > last_query_index }}",
        "{% for m in messages %}{{ loop.index0 > ns.last_tool }}{{ messages[-1] }}{% endfor %}",
        "{% if tools %}{{ m == users[-1] }}{% endif %}{{ strftime_now(form) }}",
        "{% for m in messages %}{% if tools and m == messages[-1] %}x{% endif %}{% endfor %}",
        "{% for m in messages %}{% if loop.index0 > ns.last_user_index + 1 %}{% endif %}"
        "{% if 1 + loop.index0 > ns.last_user_index %}{% endif %}"
        "{% if loop.index0 > ns.last_user_index - 1 %}{% endif %}"
        "{% if loop.index0 > ns.last_user_index | int %}{% endif %}"
        "{% if loop.index0 > ns.last_user_index[0] %}{% endif %}"
        "{% if preserve_thinking is not true %}{% endif %}"
        "{% if x == preserve_thinking %}{% endif %}{% endfor %}",
    ],
)
def test_other_constructs_are_left_alone(text: str) -> None:
    assert stabilized(text) == text


def test_a_message_is_tested_in_the_loop_that_it_belongs_to() -> None:
    text = (
        "{%- for c in calls -%}{%- endfor -%}{%- for msg in loop_messages -%}{% for x in y %}"
        "{% endfor %}{%- if loop.index0 > ns.last_user_index -%}{% endif %}{%- endfor -%}"
    )
    assert (
        f"or msg.thinking or 'think>' in (msg.content or '') | string else {EMPTY_REASONING})"
        in (stabilized(text))
    )
