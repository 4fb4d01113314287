"""From bodies as clients send them to the text of the prompt. Each of these was a fault of another
server."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from node.dialects.anthropic.body import read_messages
from node.dialects.chat.body import read_chat
from node.dialects.responses.body import read_responses
from node.prompt.prompt import Prompt
from node.prompt.renderer import PromptRenderer
from node.request import TextRequest
from tests.node.prompt.template.samples import LAST_USER, OPEN, POOR, STRICT
from tests.node.tokenizers import byte_level, made_folder

# Fails where a content is null or a list, as many templates do that add something to it.
ADDING = OPEN.replace("{{ m.content }}", "{{ '' + m.content }}")
TEMPLATES = {"open": OPEN, "adding": ADDING, "strict": STRICT, "poor": POOR, "last": LAST_USER}
WITH_TOOLS = ("open", "adding", "strict", "last")
"""The templates that spell tools, calls and results."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A town."}},
    "required": ["city"],
}
CHAT_TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER},
    }
]
CALL = {
    "id": "call_0123456789abcdef",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
}
SPELLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
"""The call as these templates spell it."""

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PromptRenderer]:
    home = tmp_path_factory.mktemp("templates")
    return {
        name: PromptRenderer(made_folder(home / name, byte_level(), text))
        for name, text in TEMPLATES.items()
    }


def chat(messages: Messages, **fields: Any) -> TextRequest:
    return read_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode()).request


def message(messages: Messages, **fields: Any) -> TextRequest:
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    return read_messages(json.dumps(body).encode()).request


def response(items: Messages, **fields: Any) -> TextRequest:
    return read_responses(json.dumps({"model": "m", "input": items, **fields}).encode()).request


def text_of(renderer: PromptRenderer, prompt: Prompt) -> str:
    return str(renderer._tokenizer.decode(prompt.tokens))


def has_in_order(text: str, *words: str) -> bool:
    """Returns True if the text has the words, each once and in this order."""
    at = [text.find(word) for word in words]
    return at[0] >= 0 and at == sorted(at) and all(text.count(word) == 1 for word in words)


def of_role(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


# --- roles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "roles",
    [
        ("developer", "user"),
        ("system", "system", "user"),
        ("system", "developer", "user"),
        ("user", "system", "user"),
        ("system", "user", "assistant", "system", "user"),
        ("developer", "user", "assistant", "user", "developer"),
        ("user", "user", "assistant", "assistant", "user"),
        ("system", "assistant", "user"),
    ],
)
def test_all_roles_reach_the_prompt_in_any_order(
    renderers: dict[str, PromptRenderer], template: str, roles: tuple[str, ...]
) -> None:
    words = [f"said{number}" for number in range(len(roles))]
    messages = [of_role(role, word) for role, word in zip(roles, words, strict=True)]
    renderer = renderers[template]
    assert has_in_order(text_of(renderer, renderer.render(chat(messages))), *words)


@pytest.mark.parametrize("template", TEMPLATES)
def test_instructions_and_developers_of_agents_reach_the_prompt(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    def parts(text: str) -> Messages:
        return [{"type": "input_text", "text": text}]

    items: Messages = [
        {"type": "message", "role": "developer", "content": parts("allowed")},
        {"type": "message", "role": "user", "content": parts("place")},
        {"type": "message", "role": "user", "content": parts("question")},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "developer", "content": parts("hurry")},
    ]
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]
    request = response(items, instructions="careful", tools=tools)
    renderer = renderers[template]
    text = text_of(renderer, renderer.render(request))
    assert has_in_order(text, "careful", "allowed", "place", "question", "sunny", "hurry")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_system_message_may_stand_in_the_middle_of_an_agents_messages(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    messages = [
        of_role("user", "first"),
        of_role("assistant", "second"),
        of_role("system", "third"),
    ]
    request = message([*messages, of_role("user", "fourth")], system="zeroth")
    renderer = renderers[template]
    text = text_of(renderer, renderer.render(request))
    assert has_in_order(text, "zeroth", "first", "second", "third", "fourth")


# --- contents --------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_system_text_in_parts_goes_together_with_tools(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    parts = [{"type": "text", "text": "part1"}, {"type": "text", "text": "part2"}]
    request = chat([of_role("system", parts), of_role("user", "said3")], tools=CHAT_TOOLS)
    renderer = renderers[template]
    text = text_of(renderer, renderer.render(request))
    assert has_in_order(text, "part1", "part2", "said3")
    assert '"weather"' in text
    tools = [{"name": "weather", "input_schema": WEATHER}]
    request = message([of_role("user", "said3")], system=parts, tools=tools)
    text = text_of(renderer, renderer.render(request))
    assert has_in_order(text, "part1", "part2", "said3")
    assert '"weather"' in text


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("content", [None, "", []])
def test_calls_without_a_content_are_rendered(
    renderers: dict[str, PromptRenderer], template: str, content: Any
) -> None:
    calling = {**of_role("assistant", content), "tool_calls": [CALL]}
    result = {**of_role("tool", "sunny"), "tool_call_id": CALL["id"]}
    request = chat([of_role("user", "hello"), calling, result], tools=CHAT_TOOLS)
    renderer = renderers[template]
    text = text_of(renderer, renderer.render(request))
    assert text.count('"city": "Bern"') == 1
    assert text.index("hello") < text.index("Bern") < text.index("sunny")
    assert "None" not in text
    del calling["content"]
    request = chat([of_role("user", "hello"), calling, result], tools=CHAT_TOOLS)
    assert text_of(renderer, renderer.render(request)) == text


def test_null_fields_do_not_reach_the_template(tmp_path: Path) -> None:
    checking = OPEN.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if 'name' in m or 'tool_calls' in m or 'image_url' in m.content "
        "%}{{ raise_exception('There is a key.') }}{% endif %}",
        1,
    )
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), checking))
    part = {"type": "text", "text": "hello", "image_url": None}
    answer = {**of_role("assistant", "hi"), "tool_calls": None, "function_call": None, "name": None}
    request = chat([{**of_role("user", [part]), "name": None}, answer, of_role("user", "again")])
    assert has_in_order(text_of(renderer, renderer.render(request)), "hello", "hi", "again")


# --- tools -----------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_prompt_shows_no_tools_where_none_may_be_called(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    renderer = renderers[template]
    user = [of_role("user", "hello")]
    plain = renderer.render(chat(user))
    request = chat(user, tools=CHAT_TOOLS, tool_choice="none")
    assert request.tools == ()
    assert renderer.render(request).tokens == plain.tokens
    tools = [{"name": "weather", "input_schema": WEATHER}]
    request = message(user, tools=tools, tool_choice={"type": "none"})
    assert renderer.render(request).tokens == plain.tokens


# --- reasoning of earlier answers ------------------------------------------------------------


def thinking_chat(content: str, thought: str) -> TextRequest:
    answer = {**of_role("assistant", content), "reasoning_content": thought}
    return chat([of_role("user", "first"), answer, of_role("user", "second")])


def thinking_message(content: str, thought: str) -> TextRequest:
    blocks = [
        {"type": "thinking", "thinking": thought, "signature": "s"},
        {"type": "text", "text": content},
    ]
    return message(
        [of_role("user", "first"), of_role("assistant", blocks), of_role("user", "second")]
    )


def thinking_response(content: str, thought: str) -> TextRequest:
    items = [
        of_role("user", "first"),
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": thought}]},
        of_role("assistant", content),
        of_role("user", "second"),
    ]
    return response(items)


@pytest.mark.parametrize("ask", [thinking_chat, thinking_message, thinking_response])
def test_earlier_reasoning_goes_into_the_prompt_only_by_the_template(
    renderers: dict[str, PromptRenderer], ask: Callable[[str, str], TextRequest]
) -> None:
    request = ask("answered", "pondered")
    for template, shown in (("poor", 0), ("last", 0), ("open", 1)):
        renderer = renderers[template]
        text = text_of(renderer, renderer.render(request))
        assert text.count("pondered") == shown
        assert has_in_order(text, "first", "answered", "second")
        if shown:
            assert "<think>\npondered\n</think>\n\nanswered" in text


# --- turns -----------------------------------------------------------------------------------

ANSWERS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "<think>\nI look.\n</think>\n\n" + SPELLED,
        {**of_role("assistant", None), "reasoning_content": "I look.", "tool_calls": [CALL]},
    ),
    (
        "<think>\nIt is.\n</think>\n\nIt is sunny.",
        {**of_role("assistant", "It is sunny."), "reasoning_content": "It is."},
    ),
)
"""Pairs of the text that the model writes and the message that the client returns."""


def turns(volatile: Callable[[int], str]) -> list[Messages]:
    """The messages of each request of a session; `volatile` begins the system text of each."""
    result = {**of_role("tool", "sunny"), "tool_call_id": CALL["id"]}
    behind = [of_role("user", "Is it fine?"), ANSWERS[0][1], result, ANSWERS[1][1]]
    behind += [of_role("user", "And now?")]
    return [
        [of_role("system", f"{volatile(number)}Be brief."), *behind[:end]]
        for number, end in enumerate((1, 3, 5))
    ]


@pytest.mark.parametrize("template", ["open", "adding", "strict"])
def test_the_next_prompt_begins_with_this_one_and_its_answer(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    renderer = renderers[template]
    prompts = [
        renderer.render(chat(messages, tools=CHAT_TOOLS)) for messages in turns(lambda _: "")
    ]
    for (answer, _), before, after in zip(ANSWERS, prompts, prompts[1:], strict=False):
        output_tokens = renderer._tokenizer.encode(answer, add_special_tokens=False)
        both = (*before.tokens, *output_tokens)
        assert after.tokens[: len(both)] == both
        assert before.reusable_tokens is None


@pytest.mark.parametrize("template", WITH_TOOLS)
def test_a_line_that_changes_each_turn_parts_no_prompt_from_the_one_before(
    renderers: dict[str, PromptRenderer], template: str
) -> None:
    def volatile(number: int) -> str:
        return f"x-anthropic-billing-header: cc_version=1; cch={number:05};\n"

    renderer = renderers[template]
    prompts = [renderer.render(chat(messages, tools=CHAT_TOOLS)) for messages in turns(volatile)]
    # One of the templates takes the thoughts away once a user speaks again.
    shared = prompts[:2] if template == "last" else prompts
    for before, after in pairwise(shared):
        assert after.tokens[: len(before.tokens)] == before.tokens
        assert before.boundaries
