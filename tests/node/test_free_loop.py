"""A very long prompt delays nobody: neither a stream that runs, nor /health."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.app import scripted_entries
from node.engine.scripted.script import Script, ScriptedModel
from node.models.store import ModelEntry
from tests.node import tokenizers
from tests.node.serving import WAIT_S, RunningAgent, closed, running

MOST_S = 0.1
"""Longest delay of anybody else."""
TOKENS = 150_000
ATTEMPTS = 8
"""The machine may be busy with something else in one of them."""
TEMPLATE = (
    "{%- if tools %}<|begin|>system\n{{ tools | tojson }}<|end|>{% endif -%}"
    "{%- for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor -%}{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
FUNCTION = {
    "description": "Looks for something. " * 200,
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
}


@pytest.fixture
def real_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted models get a real tokenizer and a real template."""
    folder = tokenizers.made_folder(tmp_path / "model", tokenizers.byte_level(), TEMPLATE)

    def in_folder(script: Script) -> tuple[ModelEntry, ...]:
        return tuple(replace(entry, folder=folder) for entry in scripted_entries(script))

    monkeypatch.setattr("node.app.scripted_entries", in_folder)


def long_body(number: int) -> bytes:
    """A session of that many tokens, like none before it."""
    content = f"{number} the weather in Paris is fine today and the tool says so. " * 30
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": f"{at}: {content}"}
        for at in range(401)
    ]
    tools = [
        {"type": "function", "function": {"name": f"look_{at}", **FUNCTION}} for at in range(40)
    ]
    body = {"model": "scripted", "max_tokens": 1, "messages": messages, "tools": tools}
    return json.dumps(body).encode()


async def health_waits(agent: RunningAgent, until: asyncio.Task[Any]) -> AsyncIterator[float]:
    """Over one connection, how long each answer of /health took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    while not until.done():
        began_s = time.monotonic()
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        yield time.monotonic() - began_s
        await asyncio.sleep(0.002)
    writer.close()
    await writer.wait_closed()


async def chunk_gaps(reader: asyncio.StreamReader, until: asyncio.Task[Any]) -> float:
    """The longest wait for a chunk of a stream."""
    worst_s, last_s = 0.0, time.monotonic()
    while not until.done():
        await reader.readuntil(b"\n\n")
        now_s = time.monotonic()
        worst_s, last_s = max(worst_s, now_s - last_s), now_s
    return worst_s


async def worst_wait(
    agent: RunningAgent, reader: asyncio.StreamReader, path: str, body: bytes
) -> tuple[float, dict[str, Any]]:
    """The longest wait of anybody else during a request, and its answer."""
    post = asyncio.create_task(agent.client.post(path, content=body))
    gaps = asyncio.create_task(chunk_gaps(reader, post))
    worst_s = max([wait_s async for wait_s in health_waits(agent, post)])
    answer = (await post).json()
    usage = answer["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) >= TOKENS
    return max(worst_s, await gaps), answer


def long_input(number: int) -> bytes:
    """The same as items of a response."""
    items = json.loads(long_body(number))["messages"]
    return json.dumps({"model": "scripted", "max_output_tokens": 1, "input": items}).encode()


@contextlib.asynccontextmanager
async def streaming(home: Path) -> AsyncIterator[tuple[RunningAgent, asyncio.StreamReader]]:
    """An agent with a stream that goes on and on."""
    script = Script(models=(ScriptedModel(context_tokens=2_000_000),), token_interval_s=0.005)
    async with running(home, script) as agent, asyncio.timeout(90):
        stream = {"model": "scripted", "stream": True, "max_tokens": 100_000}
        stream["messages"] = [{"role": "user", "content": "hello"}]
        reader, writer = await agent.send_raw(json.dumps(stream).encode())
        await reader.readuntil(b"data: ")
        yield agent, reader
        await closed(writer)


@pytest.mark.usefixtures("real_prompts")
async def test_a_prompt_of_150_000_tokens_delays_no_other_stream_and_no_health_check(
    tmp_path: Path,
) -> None:
    best_s = WAIT_S
    async with streaming(tmp_path / "home") as (agent, reader):
        for number in range(ATTEMPTS):
            body = long_body(number)
            worst_s, _ = await worst_wait(agent, reader, "/v1/chat/completions", body)
            best_s = min(best_s, worst_s)
            if best_s < MOST_S:
                break
    assert best_s < MOST_S


@pytest.mark.usefixtures("real_prompts")
async def test_neither_does_a_response_that_goes_on_from_such_a_prompt(tmp_path: Path) -> None:
    best_s = WAIT_S
    async with streaming(tmp_path / "home") as (agent, reader):
        first = await agent.client.post("/v1/responses", content=long_input(0))
        follow_up = {"model": "scripted", "max_output_tokens": 1, "input": "And now?"}
        for _ in range(ATTEMPTS):
            body = {**follow_up, "previous_response_id": first.json()["id"]}
            data = json.dumps(body).encode()
            worst_s, _ = await worst_wait(agent, reader, "/v1/responses", data)
            best_s = min(best_s, worst_s)
            if best_s < MOST_S:
                break
    assert best_s < MOST_S
