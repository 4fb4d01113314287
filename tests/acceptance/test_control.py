"""Constrained answers, requested by the clients' own libraries through a router, of a real model.

The model's weights are random: whatever of its answers is in order was constrained.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import BaseModel

from tests.acceptance.processes import Router, agent, router
from tests.mlx.tiny import make_tiny

pytestmark = pytest.mark.mlx

MODEL = "tiny"
MAX_TOKENS = 600
TIMEOUT_S = 60.0
HELLO: Any = [{"role": "user", "content": "hello"}]

_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Call a function as <tool_call>{"name": ..., "arguments": ...}</tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is not true %}
</think>

{% endif %}{% endif %}"""


class Ship(BaseModel):
    """Few ways to go on, of which each ends."""

    kind: Literal["sloop", "brig"]
    is_old: bool
    masts: Literal[1, 2, 3]
    flag: Literal["red", "blue"] | None


_ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}, "days": {"enum": [1, 2, 7]}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
IMPOSSIBLE: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 1}},
    "required": ["n"],
}
NAMES = ("forecast", "history")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router before one agent that serves a tiny model with thinking and tools."""
    home = tmp_path_factory.mktemp("control")
    folder = _model(home / MODEL)
    serving = agent(home / "node", None, "--engine", "text", "--model", str(folder))
    with router(home / "router") as running, serving as node:
        running.must("add-node", node.url, "--name", "node", "--token", node.token)
        yield running


def _model(folder: Path) -> Path:
    make_tiny(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": _TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def chat(front: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=front.url + "/v1", api_key=front.key, max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


@pytest.fixture(scope="module")
def claude(front: Router) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=front.url, api_key=front.key, max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


def chat_tool(name: str) -> ChatCompletionFunctionToolParam:
    return {"type": "function", "function": {"name": name, "parameters": _ARGUMENTS}}


def message_tool(name: str) -> ToolParam:
    return {"name": name, "input_schema": _ARGUMENTS}


def assert_fits(arguments: object) -> None:
    assert isinstance(arguments, dict)
    assert set(arguments) == {"unit", "days"}
    assert arguments["unit"] in ("celsius", "kelvin")
    assert arguments["days"] in (1, 2, 7)


CHAT_TOOLS = [chat_tool(name) for name in NAMES]
MESSAGE_TOOLS = [message_tool(name) for name in NAMES]
RESPONSE_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": _ARGUMENTS, "strict": True} for name in NAMES
]


# --- texts -----------------------------------------------------------------------------------


def test_a_chat_is_parsed_into_a_model(chat: openai.OpenAI) -> None:
    answer = chat.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Ship, seed=1, max_tokens=MAX_TOKENS
    )
    assert isinstance(answer.choices[0].message.parsed, Ship)
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_chat_is_parsed_into_a_model(chat: openai.OpenAI) -> None:
    with chat.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Ship, seed=3, max_tokens=MAX_TOKENS
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Ship)


def test_a_response_is_parsed_into_a_model(chat: openai.OpenAI) -> None:
    answer = chat.responses.parse(
        model=MODEL, input="hello", text_format=Ship, max_output_tokens=MAX_TOKENS
    )
    assert isinstance(answer.output_parsed, Ship)
    assert answer.text is not None and answer.text.format is not None
    assert answer.text.format.type == "json_schema"
    later = chat.responses.parse(
        model=MODEL,
        input="and now?",
        text_format=Ship,
        max_output_tokens=MAX_TOKENS,
        previous_response_id=answer.id,
    )
    assert isinstance(later.output_parsed, Ship)


def test_a_streamed_response_is_parsed_into_a_model(chat: openai.OpenAI) -> None:
    with chat.responses.stream(
        model=MODEL, input="hello", text_format=Ship, max_output_tokens=MAX_TOKENS
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_response()
    assert isinstance(answer.output_parsed, Ship)


def test_a_message_is_parsed_into_a_model(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.parse(
        model=MODEL, messages=HELLO, output_format=Ship, max_tokens=MAX_TOKENS
    )
    assert isinstance(answer.parsed_output, Ship)
    assert answer.stop_reason == "end_turn"


def test_a_message_is_constrained_behind_its_thinking(claude: anthropic.Anthropic) -> None:
    answer: Any = claude.messages.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=MAX_TOKENS,
        thinking={"type": "enabled", "budget_tokens": 9},
        output_config={"format": {"type": "json_schema", "schema": _ARGUMENTS}},
    )
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert_fits(json.loads(answer.content[1].text))


# --- calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "names", "stream"),
    [
        ("required", set(NAMES), True),
        ({"type": "function", "function": {"name": "history"}}, {"history"}, False),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": CHAT_TOOLS[:1]},
            },
            {"forecast"},
            False,
        ),
    ],
)
def test_a_chat_calls_a_tool_where_it_must(
    chat: openai.OpenAI, choice: Any, names: set[str], stream: bool
) -> None:
    request: Any = {
        "model": MODEL,
        "messages": HELLO,
        "tools": CHAT_TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": MAX_TOKENS,
    }
    if stream:
        with chat.chat.completions.stream(**request) as events:
            for _ in events:
                pass
            answer: Any = events.get_final_completion()
    else:
        answer = chat.chat.completions.create(**request)
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name in names
    assert_fits(json.loads(call.function.arguments))


def test_a_streamed_response_calls_the_tool_that_it_must(chat: openai.OpenAI) -> None:
    request: Any = {
        "model": MODEL,
        "input": "hello",
        "tools": RESPONSE_TOOLS,
        "tool_choice": {"type": "function", "name": "history"},
        "max_output_tokens": MAX_TOKENS,
    }
    with chat.responses.stream(**request) as events:
        for _ in events:
            pass
        answer: Any = events.get_final_response()
    (call,) = answer.output
    assert (call.type, call.name) == ("function_call", "history")
    assert_fits(json.loads(call.arguments))


def test_a_streamed_message_calls_the_tool_that_it_must(claude: anthropic.Anthropic) -> None:
    request: Any = {
        "model": MODEL,
        "messages": HELLO,
        "tools": MESSAGE_TOOLS,
        "tool_choice": {"type": "tool", "name": "history"},
        "max_tokens": MAX_TOKENS,
    }
    with claude.messages.stream(**request) as events:
        answer: Any = events.get_final_message()
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert (call.type, call.name) == ("tool_use", "history")
    assert_fits(call.input)


def test_a_message_thinks_and_then_calls_some_tool(claude: anthropic.Anthropic) -> None:
    answer: Any = claude.messages.create(
        model=MODEL,
        messages=HELLO,
        tools=MESSAGE_TOOLS,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=MAX_TOKENS,
        thinking={"type": "enabled", "budget_tokens": 9},
    )
    assert [block.type for block in answer.content] == ["thinking", "tool_use"]
    call = answer.content[1]
    assert call.name in NAMES
    assert_fits(call.input)


# --- what cannot be constrained --------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_impossible_schema_is_a_bad_request_before_any_token(
    chat: openai.OpenAI, claude: anthropic.Anthropic, stream: bool
) -> None:
    shape: Any = {"type": "json_schema", "name": "n", "schema": IMPOSSIBLE}
    with pytest.raises(openai.BadRequestError) as chatted:
        chat.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            response_format={"type": "json_schema", "json_schema": shape},
            stream=stream,
        )
    assert chatted.value.param == "response_format.json_schema.schema"
    with pytest.raises(openai.BadRequestError) as responded:
        chat.responses.create(model=MODEL, input="hello", text={"format": shape}, stream=stream)
    assert responded.value.param == "text.format.schema"
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
        claude.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=9,
            output_config={"format": {"type": "json_schema", "schema": IMPOSSIBLE}},
            stream=stream,
        )


def test_an_impossible_tool_is_named_where_it_must_be_called(claude: anthropic.Anthropic) -> None:
    tools: list[ToolParam] = [MESSAGE_TOOLS[0], {"name": "no", "input_schema": IMPOSSIBLE}]
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[1\]\.input_schema"):
        claude.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=9,
            tools=tools,
            tool_choice={"type": "tool", "name": "no"},
        )


# --- choices and probabilities ---------------------------------------------------------------


def test_two_answers_are_streamed_with_the_probabilities_of_their_tokens(
    chat: openai.OpenAI,
) -> None:
    request: Any = {
        "model": MODEL,
        "messages": HELLO,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "seed": 5,
        "max_tokens": 12,
    }
    whole = chat.chat.completions.create(**request)
    texts, tokens = {0: "", 1: ""}, {0: 0, 1: 0}
    for chunk in chat.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            for each in (choice.logprobs and choice.logprobs.content) or ():
                tokens[choice.index] += 1
                assert each.logprob <= 0
                assert [other.logprob for other in each.top_logprobs] == sorted(
                    (other.logprob for other in each.top_logprobs), reverse=True
                )
                assert len(each.top_logprobs) == 3
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert texts[0] != texts[1]
    assert all(tokens.values())


def test_a_response_has_the_probabilities_of_its_text(chat: openai.OpenAI) -> None:
    answer: Any = chat.responses.create(
        model=MODEL,
        input="hello",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=5,
    )
    (message,) = answer.output
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert part.logprobs
    for each in part.logprobs:
        assert len(each.top_logprobs) == 2
        assert sum(math.exp(other.logprob) for other in each.top_logprobs) <= 1.001
