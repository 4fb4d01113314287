"""The `openai` SDK at `/v1/chat/completions` and `/v1/completions` of an agent."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.clients.scenario import (
    FAMILIES,
    FUNCTIONS,
    HERMES,
    MODEL,
    QUESTION,
    RESULTS,
    SESSION,
    Answer,
    Family,
    serving,
)


@asynccontextmanager
async def _client(
    home: Path, family: Family = HERMES, **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(home, family, **options) as agent,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{agent.port}/v1", api_key=agent.token, max_retries=0
        ) as client,
    ):
        yield client


async def _create(client: openai.AsyncOpenAI, messages: list[Any]) -> ChatCompletion:
    return await client.chat.completions.create(model=MODEL, messages=messages, tools=FUNCTIONS)


async def _stream(client: openai.AsyncOpenAI, messages: list[Any]) -> dict[str, Any]:
    """The message that a stream's deltas make, its calls as dictionaries."""
    message: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
    finish = None
    async for chunk in await client.chat.completions.create(
        model=MODEL, messages=messages, tools=FUNCTIONS, stream=True
    ):
        (choice,) = chunk.choices
        delta = choice.delta
        message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        message["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.index == len(message["tool_calls"]):
                function = {"name": call.function.name, "arguments": ""}
                message["tool_calls"].append(
                    {"id": call.id, "type": "function", "function": function}
                )
            made = message["tool_calls"][call.index]["function"]
            made["arguments"] += call.function.arguments or ""
        assert finish is None
        finish = choice.finish_reason
    assert finish == ("tool_calls" if message["tool_calls"] else "stop")
    return message


async def _answer(client: openai.AsyncOpenAI, messages: list[Any], how: str) -> dict[str, Any]:
    if how == "streamed":
        return await _stream(client, messages)
    if how == "collected":
        completion = await _create(client, messages)
    else:
        async with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=FUNCTIONS
        ) as stream:
            text = "".join([e.delta async for e in stream if e.type == "content.delta"])
            completion = await stream.get_final_completion()
        assert text == (completion.choices[0].message.content or "")
    (choice,) = completion.choices
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    return choice.message.model_dump(exclude_none=True)


def _parsed(message: dict[str, Any]) -> Answer:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return Answer(
        message.get("reasoning_content", ""),
        message.get("content") or "",
        tuple((each["name"], json.loads(each["arguments"])) for each in functions),
    )


async def _session(client: openai.AsyncOpenAI, how: str) -> list[Answer]:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    answers: list[Answer] = []
    while not answers or answers[-1].calls:
        message = await _answer(client, messages, how)
        answers.append(_parsed(message))
        messages.append({"role": "assistant", **message})
        messages += [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": RESULTS[call["function"]["name"]],
            }
            for call in message.get("tool_calls", ())
        ]
    return answers


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_chat_calls_tools_and_answers(tmp_path: Path, family: Family) -> None:
    ways = ("collected", "streamed", "helper")
    async with _client(tmp_path, family) as client:
        sessions = {how: await _session(client, how) for how in ways}
    assert sessions == dict.fromkeys(ways, list(SESSION))


async def test_the_stream_helper_emits_each_call_when_it_is_complete(tmp_path: Path) -> None:
    async with (
        _client(tmp_path, outputs=HERMES.outputs[1:]) as client,
        client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], tools=FUNCTIONS
        ) as stream,
    ):
        done = [e async for e in stream if e.type == "tool_calls.function.arguments.done"]
    assert [(e.index, e.name, json.loads(e.arguments)) for e in done] == [
        (at, name, arguments) for at, (name, arguments) in enumerate(SESSION[1].calls)
    ]


async def test_usage_is_the_same_streamed_and_collected(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    async with _client(tmp_path, outputs=HERMES.outputs[:1]) as client:
        whole = await _create(client, messages)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                tools=FUNCTIONS,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    usage = chunks[-1].usage
    assert usage is not None and usage == whole.usage
    assert not any(chunk.usage for chunk in chunks[:-1])
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 0
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens


async def test_tool_choice_none_leaves_markup_as_it_is(tmp_path: Path) -> None:
    output = HERMES.outputs[0].partition("</think>\n\n")[2]
    async with _client(tmp_path, outputs=[output]) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            tools=FUNCTIONS,
            tool_choice="none",
        )
    assert answer.choices[0].message.content == output
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


async def test_without_parallel_calls_the_answer_ends_with_its_first(tmp_path: Path) -> None:
    async with _client(tmp_path, outputs=HERMES.outputs[1:]) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            tools=FUNCTIONS,
            parallel_tool_calls=False,
        )
    assert _parsed(answer.choices[0].message.model_dump()).calls == SESSION[1].calls[:1]
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_a_completion_is_text_as_the_model_writes_it(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        whole = await client.completions.create(model=MODEL, prompt="Once")
        stream = await client.completions.create(
            model=MODEL, prompt="Once", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].text == HERMES.outputs[0]
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].text for c in chunks if c.choices) == HERMES.outputs[1]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


async def test_models_report_what_they_can_do(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        (model,) = [each async for each in client.models.list()]
        assert await client.models.retrieve(MODEL) == model
    assert model.id == MODEL
    assert model.model_extra is not None
    assert model.model_extra["capabilities"] == ["completion", "tools", "reasoning"]
    assert model.model_extra["tool_call_parser"] == "hermes"
    assert model.model_extra["reasoning_parser"] == "think"
    assert model.model_extra["context_window"] == 32_768
