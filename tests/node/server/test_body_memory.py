"""Bodies are read as long as there is room for them, shared among callers."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.bounds import MAX_BODY_BYTES
from node.protocol.headers import HEADER_ORIGIN
from node.server import body_memory
from serving.fair_shares import Share
from tests.node.serving import WAIT_S, RunningAgent, chat_body, closed, running

ROOM_BYTES = 4000
CONTENT = "x" * 1000
SLOW = Script(tokens=1000, stall_after_tokens=2)


@pytest.fixture(autouse=True)
def little_room() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_memory, "MAX_OPEN_BYTES", ROOM_BYTES)
        yield


async def begun(agent: RunningAgent, caller: str, content: str = CONTENT) -> asyncio.StreamWriter:
    """Starts a request of this caller; its response has begun and continues."""
    data = json.dumps(chat_body(content, stream=True)).encode()
    reader, writer = await ask(agent, caller, data)
    await reader.readuntil(b"data: ")
    return writer


async def ask(
    agent: RunningAgent, caller: str, data: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    head = f"content-length: {len(data)}\r\n{HEADER_ORIGIN}: {caller}"
    return await agent.send_raw(data, head=head)


async def test_a_caller_whose_share_is_full_waits_and_others_do_not(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        first = await begun(agent, "r/a")
        waiting = asyncio.create_task(begun(agent, "r/a", CONTENT * 2))
        other = await begun(agent, "r/b")
        assert not waiting.done()
        assert len((await agent.client.get("/v1/requests")).json()["data"]) == 2
        await closed(first)
        await closed(other)
        await closed(await waiting)


async def test_one_that_waits_too_long_is_rejected_with_a_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_memory, "WAIT_S", 0.01)
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        first = await begun(agent, "r/a", CONTENT * 2)
        refused = await agent.client.post(
            "/v1/chat/completions", json=chat_body(CONTENT * 2), headers={HEADER_ORIGIN: "r/a"}
        )
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_much_waiting"
        assert int(refused.headers["retry-after"]) > 0
        await closed(first)


async def test_reserved_room_is_released_however_a_request_ends(tmp_path: Path) -> None:
    script = Script(models=(ScriptedModel(context_tokens=100),))
    bad: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/chat/completions", chat_body(CONTENT * 3), 400),
        ("/v1/chat/completions", chat_body(CONTENT, n="no"), 400),
        ("/v1/chat/completions", chat_body(CONTENT, model="none"), 404),
        ("/v1/responses", {"model": "scripted", "input": CONTENT * 3}, 400),
        ("/v1/messages/count_tokens", chat_body(CONTENT * 3), 200),
    ]
    async with running(tmp_path, script) as agent, asyncio.timeout(WAIT_S):
        for _ in range(ROOM_BYTES // len(CONTENT)):
            for path, body, status in bad:
                assert (await agent.client.post(path, json=body)).status_code == status


async def test_a_body_without_a_length_counts_as_the_longest_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[tuple[int, Share]] = []
    reserve = body_memory.Bodies.reserve

    async def recording(self: body_memory.Bodies, caller: str, size_bytes: int) -> Share:
        shares.append((size_bytes, await reserve(self, caller, size_bytes)))
        return shares[-1][1]

    monkeypatch.setattr(body_memory.Bodies, "reserve", recording)
    data = json.dumps(chat_body("x", stream=True)).encode()
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        reader, writer = await agent.send_raw(b"", head="transfer-encoding: chunked")
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        await reader.readuntil(b"data: ")
        whole = await begun(agent, "r/a", "x")
        assert [size_bytes for size_bytes, _ in shares] == [MAX_BODY_BYTES, len(data)]
        assert [share.size for _, share in shares] == [len(data)] * 2
        await closed(writer)
        await closed(whole)


COUNTED = {"model": "scripted", "messages": [{"role": "user", "content": CONTENT}]}


async def test_a_count_beyond_the_context_is_a_number_beyond_the_context(tmp_path: Path) -> None:
    script = Script(models=(ScriptedModel(context_tokens=100),))
    async with running(tmp_path, script) as agent:
        answer = await agent.client.post("/v1/messages/count_tokens", json=COUNTED)
    assert answer.json() == {"input_tokens": len(CONTENT) // 4}
