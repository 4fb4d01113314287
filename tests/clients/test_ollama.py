"""The `ollama` SDK at `/api` of an agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ollama
import pytest

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

BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", so.</tool_call>'


@asynccontextmanager
async def _client(
    home: Path, family: Family = HERMES, **options: Any
) -> AsyncIterator[ollama.AsyncClient]:
    async with serving(home, family, **options) as agent:
        headers = {"authorization": f"Bearer {agent.token}"}
        client = ollama.AsyncClient(host=f"http://127.0.0.1:{agent.port}", headers=headers)
        try:
            yield client
        finally:
            await client._client.aclose()


async def _stream(client: ollama.AsyncClient, messages: list[Any]) -> ollama.Message:
    """The message that a stream's lines make."""
    thinking, content = "", ""
    calls: list[ollama.Message.ToolCall] = []
    async for line in await client.chat(MODEL, messages, tools=FUNCTIONS, stream=True):
        thinking += line.message.thinking or ""
        content += line.message.content or ""
        calls += line.message.tool_calls or ()
    assert line.done and line.done_reason == "stop"
    return ollama.Message(
        role="assistant", thinking=thinking or None, content=content, tool_calls=calls or None
    )


def _answer(message: ollama.Message) -> Answer:
    calls = tuple(
        (call.function.name, dict(call.function.arguments)) for call in message.tool_calls or ()
    )
    return Answer(message.thinking or "", message.content or "", calls)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_session_with_tools_is_understood(
    tmp_path: Path, family: Family, streams: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    understood = []
    async with _client(tmp_path, family) as client:
        for _ in SESSION:
            if streams:
                message = await _stream(client, messages)
            else:
                message = (await client.chat(MODEL, messages, tools=FUNCTIONS)).message
            understood.append(_answer(message))
            messages.append(message)
            messages += [
                {"role": "tool", "content": RESULTS[name], "tool_name": name}
                for name, _ in understood[-1].calls
            ]
    assert understood == list(SESSION)


async def test_the_last_line_has_the_usage_and_the_times(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        whole = await client.generate(f"{MODEL}:latest", QUESTION, options={"num_predict": 3})
        lines = [
            line
            async for line in await client.chat(
                MODEL, [{"role": "user", "content": QUESTION}], stream=True
            )
        ]
    assert (whole.model, whole.done, whole.done_reason) == (f"{MODEL}:latest", True, "length")
    assert whole.eval_count == 3
    last = lines[-1]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert last.prompt_eval_count and last.eval_count
    times = (last.total_duration, last.load_duration, last.prompt_eval_duration, last.eval_duration)
    assert all(isinstance(each, int) and each >= 0 for each in times)
    assert (last.total_duration or 0) >= (last.load_duration or 0)


async def test_thinking_is_switched_off_and_hidden(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        message = (
            await client.chat(MODEL, [{"role": "user", "content": QUESTION}], think=False)
        ).message
    assert message.thinking is None


async def test_models_are_listed_shown_loaded_and_unloaded(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        (listed,) = (await client.list()).models
        assert listed.model == f"{MODEL}:latest" and len(listed.digest or "") == 64
        shown = await client.show(listed.model)
        assert shown.capabilities == ["completion", "tools", "thinking"]
        info = shown.modelinfo or {}
        assert info[f"{info['general.architecture']}.context_length"] == 32768
        assert (await client.ps()).models == []
        loaded = await client.generate(MODEL, keep_alive=-1)
        assert (loaded.done_reason, loaded.response) == ("load", "")
        (running,) = (await client.ps()).models
        assert running.model == listed.model and running.context_length == 32768
        assert running.expires_at is not None and running.expires_at.year == 2318
        unloaded = await client.chat(MODEL, keep_alive=0)
        assert (unloaded.done_reason, unloaded.message.content) == ("unload", "")
        assert (await client.ps()).models == []


async def test_errors_are_texts_with_a_status(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        with pytest.raises(ollama.ResponseError, match="no model 'nope'") as unknown:
            await client.chat("nope", [{"role": "user", "content": "x"}])
        assert unknown.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match=r"options\.mirostat") as refused:
            await client.generate(MODEL, "x", options={"mirostat": 2})
        assert refused.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="computes no embeddings") as missing:
            await client.embed(MODEL, "x")
        assert missing.value.status_code == 501
        with pytest.raises(ollama.ResponseError, match="node-agent pull"):
            await client.pull("other")
        assert (await client.pull(MODEL)).status == "success"


@pytest.mark.parametrize("output", [BROKEN, BROKEN[:60]])
async def test_a_call_that_breaks_off_is_an_error_at_the_end(tmp_path: Path, output: str) -> None:
    async with _client(tmp_path, outputs=(output,)) as client:
        stream = await client.chat(
            MODEL, [{"role": "user", "content": QUESTION}], tools=FUNCTIONS, stream=True
        )
        with pytest.raises(
            ollama.ResponseError, match="^The model broke off its call of get_weather"
        ):
            _ = [line async for line in stream]
        with pytest.raises(
            ollama.ResponseError, match="^The model broke off its call of get_weather"
        ):
            await client.chat(MODEL, [{"role": "user", "content": QUESTION}], tools=FUNCTIONS)
