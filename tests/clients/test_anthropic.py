"""The `anthropic` SDK at `/v1/messages` of an agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.lib.tools import BetaAsyncFunctionTool, beta_async_tool
from anthropic.types import Message

from tests.clients.scenario import (
    FAMILIES,
    HERMES,
    MODEL,
    QUESTION,
    RESULTS,
    SESSION,
    TOOLS,
    Answer,
    Family,
    Tool,
    serving,
)

_MAX_TOKENS = 4000
_TOOLS: Any = [
    {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    for tool in TOOLS
]


@asynccontextmanager
async def _client(
    home: Path, family: Family = HERMES, **options: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        serving(home, family, **options) as agent,
        anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{agent.port}", api_key=agent.token, max_retries=0
        ) as client,
    ):
        yield client


def _request(messages: list[Any], **fields: Any) -> dict[str, Any]:
    """A request to the model with all tools."""
    plain = {"model": MODEL, "max_tokens": _MAX_TOKENS, "tools": _TOOLS}
    return {**plain, "messages": messages, **fields}


async def _helped(client: anthropic.AsyncAnthropic, request: dict[str, Any]) -> Message:
    async with client.messages.stream(**request) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == "".join(block.text for block in message.content if block.type == "text")
    return message


async def _answer(client: anthropic.AsyncAnthropic, messages: list[Any], how: str) -> Message:
    request = _request(messages, thinking={"type": "adaptive"})
    if how == "collected":
        message: Message = await client.messages.create(**request)
    else:
        message = await _helped(client, request)
    uses = any(block.type == "tool_use" for block in message.content)
    assert message.stop_reason == ("tool_use" if uses else "end_turn")
    return message


def _parsed(message: Any) -> Answer:
    blocks = message.content
    calls = tuple((each.name, each.input) for each in blocks if each.type == "tool_use")
    thinking = "".join(each.thinking for each in blocks if each.type == "thinking")
    return Answer(thinking, "".join(each.text for each in blocks if each.type == "text"), calls)


def _results(message: Message) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": RESULTS[block.name]}
        for block in message.content
        if block.type == "tool_use"
    ]


async def _session(client: anthropic.AsyncAnthropic, how: str) -> list[Answer]:
    """Thinking blocks go back to the server with their turn, as the API requires."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    answers: list[Answer] = []
    while not answers or answers[-1].calls:
        message = await _answer(client, messages, how)
        answers.append(_parsed(message))
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": _results(message)})
    return answers


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_message_uses_tools_and_answers(tmp_path: Path, family: Family) -> None:
    ways = ("collected", "streamed")
    async with _client(tmp_path, family) as client:
        sessions = {how: await _session(client, how) for how in ways}
    assert sessions == dict.fromkeys(ways, list(SESSION))


async def test_events_of_a_stream_are_blocks_one_after_another(tmp_path: Path) -> None:
    async with _client(tmp_path, outputs=HERMES.outputs[1:2]) as client:
        request = _request([{"role": "user", "content": QUESTION}])
        events = [event async for event in await client.messages.create(**request, stream=True)]
    starts = [event for event in events if event.type == "content_block_start"]
    kinds = [event.content_block.type for event in starts]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    at = -1
    for event in events[1:-2]:
        if event.type == "content_block_start":
            at += 1
        if event.type in ("content_block_start", "content_block_delta", "content_block_stop"):
            assert event.index == at
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]


def _runnable(tool: Tool) -> BetaAsyncFunctionTool[Any]:
    async def call(**arguments: Any) -> str:
        assert (tool.name, arguments) in [each for answer in SESSION for each in answer.calls]
        return RESULTS[tool.name]

    schema: Any = tool.parameters
    return beta_async_tool(call, name=tool.name, description=tool.description, input_schema=schema)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_the_tool_runner_runs_to_the_end(tmp_path: Path, family: Family) -> None:
    # It requests a thread stored on the server, and goes on without one where that is refused.
    answers: dict[bool, list[Answer]] = {False: [], True: []}
    runnable = [_runnable(tool) for tool in TOOLS]
    async with _client(tmp_path, family) as client:
        request: Any = {
            "model": MODEL,
            "max_tokens": _MAX_TOKENS,
            "messages": [{"role": "user", "content": QUESTION}],
            "tools": runnable,
        }
        async for message in client.beta.messages.tool_runner(**request):
            answers[False].append(_parsed(message))
        async for stream in client.beta.messages.tool_runner(**request, stream=True):
            answers[True].append(_parsed(await stream.get_final_message()))
    assert answers == dict.fromkeys((False, True), list(SESSION))


async def test_usage_is_the_same_streamed_and_collected_and_counted_before(tmp_path: Path) -> None:
    async with _client(tmp_path, outputs=HERMES.outputs[:1]) as client:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        counted = await client.messages.count_tokens(model=MODEL, messages=messages, tools=_TOOLS)
        whole = await client.messages.create(**_request(messages))
        streamed = await _helped(client, _request(messages))
    usage = whole.usage
    assert usage.input_tokens == streamed.usage.input_tokens == counted.input_tokens > 0
    assert usage.output_tokens == streamed.usage.output_tokens
    assert usage.output_tokens_details is not None
    assert 0 < usage.output_tokens_details.thinking_tokens < usage.output_tokens


async def test_thinking_that_is_omitted_has_a_signature_that_goes_back(tmp_path: Path) -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    async with _client(tmp_path) as client:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        first = await client.messages.create(**_request(messages, thinking=thinking))
        block = first.content[0]
        messages.append({"role": "assistant", "content": first.content})
        messages.append({"role": "user", "content": _results(first)})
        second = await client.messages.create(**_request(messages, thinking=thinking))
    assert block.type == "thinking"
    assert block.thinking == ""
    assert block.signature
    assert _parsed(second).calls == SESSION[1].calls


async def test_a_stop_sequence_is_named(tmp_path: Path) -> None:
    async with _client(tmp_path, outputs=["One, two, END three"]) as client:
        request = _request([{"role": "user", "content": "Count."}], stop_sequences=["END"])
        message = await client.messages.create(**request)
    assert _parsed(message).text == "One, two, "
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == "END"


async def test_models_are_listed(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        (model,) = [each async for each in client.models.list()]
        assert await client.models.retrieve(MODEL) == model
    assert model.id == model.display_name == MODEL
    assert model.created_at.year > 2000
