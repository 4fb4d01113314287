"""The `openai` SDK at `/v1/responses` of an agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall

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
    serving,
)
from tests.node.serving import WAIT_S

_TOOLS: Any = [
    {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }
    for tool in TOOLS
]


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


def _calls(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def _parsed(response: Response) -> Answer:
    reasoning = [
        part.text
        for item in response.output
        if item.type == "reasoning"
        for part in item.content or ()
    ]
    calls = tuple((call.name, json.loads(call.arguments)) for call in _calls(response))
    return Answer("".join(reasoning), response.output_text, calls)


def _results(response: Response) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": RESULTS[call.name]}
        for call in _calls(response)
    ]


async def _streamed(client: openai.AsyncOpenAI, **request: Any) -> Response:
    """The response that a stream ends with, which its events must have sent piece by piece."""
    events = [event async for event in await client.responses.create(**request, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    response: Response = last.response
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    reasoning = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    arguments = "".join(
        e.delta for e in events if e.type == "response.function_call_arguments.delta"
    )
    assert text == response.output_text
    assert reasoning == _parsed(response).reasoning
    assert arguments == "".join(call.arguments for call in _calls(response))
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [i.model_dump() for i in response.output]
    return response


async def _helped(client: openai.AsyncOpenAI, **request: Any) -> Any:
    async with client.responses.stream(**request) as stream:
        async for event in stream:
            assert event.type != "error"
        return await stream.get_final_response()


async def _answer(client: openai.AsyncOpenAI, how: str, **request: Any) -> Response:
    if how == "streamed":
        return await _streamed(client, **request)
    if how == "helper":
        response: Response = await _helped(client, **request)
    else:
        response = await client.responses.create(**request)
    return response


def _prompt_tokens(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens


async def _following(client: openai.AsyncOpenAI, how: str) -> tuple[list[Answer], list[int]]:
    """A session in which each turn goes on from the stored response of the one before: what the
    model answers, and how long its prompts are."""
    answers: list[Answer] = []
    lengths = []
    more: dict[str, Any] = {"input": QUESTION}
    while not answers or answers[-1].calls:
        response = await _answer(client, how, model=MODEL, tools=_TOOLS, **more)
        assert response.status == "completed"
        answers.append(_parsed(response))
        lengths.append(_prompt_tokens(response))
        more = {"input": _results(response), "previous_response_id": response.id}
    return answers, lengths


async def _repeating(client: openai.AsyncOpenAI, how: str) -> tuple[list[Answer], list[int]]:
    """The same of a session in which nothing is stored, and each turn sends all that went
    before."""
    answers: list[Answer] = []
    lengths = []
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while not answers or answers[-1].calls:
        response = await _answer(
            client,
            how,
            model=MODEL,
            tools=_TOOLS,
            input=items,
            store=False,
            include=["reasoning.encrypted_content"],
        )
        answers.append(_parsed(response))
        lengths.append(_prompt_tokens(response))
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items += _results(response)
    return answers, lengths


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_response_calls_tools_and_answers(tmp_path: Path, family: Family) -> None:
    ways = ("collected", "streamed", "helper")
    async with _client(tmp_path, family) as client:
        following = {how: await _following(client, how) for how in ways}
        repeating = {how: await _repeating(client, how) for how in ways}
    answers, lengths = following["collected"]
    assert answers == list(SESSION)
    assert sorted(set(lengths)) == lengths
    assert following == repeating == dict.fromkeys(ways, (answers, lengths))


async def test_a_stored_response_is_retrieved_listed_and_deleted(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        made = await client.responses.create(
            model=MODEL, input=QUESTION, tools=_TOOLS, instructions="Be brief.", metadata={"a": "b"}
        )
        found = await client.responses.retrieve(made.id)
        listed = [item async for item in client.responses.input_items.list(made.id)]
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model=MODEL, input="And?", previous_response_id=made.id)
    assert found == made
    assert found.metadata == {"a": "b"}
    (item,) = listed
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "input_text"
    assert part.text == QUESTION
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"


async def test_what_is_not_to_be_stored_is_not_found(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        made = await client.responses.create(model=MODEL, input=QUESTION, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_running_response_is_cancelled(tmp_path: Path) -> None:
    output = "word " * 10_000
    async with (
        _client(tmp_path, outputs=[output], token_interval_s=0.01) as client,
        asyncio.timeout(WAIT_S),
    ):
        stream = await client.responses.create(model=MODEL, input=QUESTION, stream=True)
        seen = []
        answer: Response | None = None
        async for event in stream:
            seen.append(event)
            if answer is None and event.type == "response.output_text.delta":
                answer = await client.responses.cancel(seen[0].response.id)  # type: ignore[union-attr]
        kept = await client.responses.retrieve(answer.id if answer else "")
    assert answer is not None
    assert answer.status == "cancelled"
    assert kept.status == "cancelled"
    last = seen[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert 0 < len(kept.output_text) < len(output)


async def test_usage_is_the_same_streamed_and_collected(tmp_path: Path) -> None:
    async with _client(tmp_path, outputs=HERMES.outputs[:1]) as client:
        request = {"model": MODEL, "input": QUESTION, "tools": _TOOLS}
        whole = await _answer(client, "collected", **request)
        streamed = await _answer(client, "streamed", **request)
    usage = whole.usage
    assert usage is not None and usage == streamed.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens > 0
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
