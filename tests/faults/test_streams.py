"""Reports 7 to 15: what becomes of the bytes of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from node.engine.scripted.script import Script as EngineScript
from node.engine.scripted.script import ScriptedModel
from router.settings import CONNECT_TIMEOUT_S
from router.upstream import http_client as upstream_module
from serving.http.client_connection import ClientConnection
from tests.faults.rig import WAIT_S, add_real, until
from tests.node.serving import running
from tests.router.conftest import (
    CHAT,
    AddNode,
    Request,
    RunningRouter,
    StartNode,
    answer_bytes,
    model_status,
    node_record,
    node_status,
    running_router,
)
from tests.router.dispatch.test_relay import (
    DONE,
    HELLO,
    STREAM,
    WHOLE,
    hang,
    in_band_error,
    request_counts,
    stream,
    whole,
)

MESSAGES = "/v1/messages"
MESSAGE = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}


# --- silence ---


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {**MESSAGE}), (MESSAGES, {**MESSAGE}), ("/v1/responses", {"model": "m", "input": "a"})],
)
async def test_fault_07_a_long_prefill_is_no_silence(
    impatient: RunningRouter, add_node: AddNode, path: str, body: dict[str, object]
) -> None:
    node = await add_node(impatient, "a", hang)
    caller = await impatient.post({**body, "stream": True}, path)
    assert await caller.head() == 200
    for _ in range(3):
        chunk = await caller.chunk()
        assert chunk.startswith(b":") or b"event: ping" in chunk
    assert [each.target for each in node.requests].count(path) == 1


# --- what breaks ---


async def broken_after_content(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    request.drop()


async def test_fault_08_a_stream_that_breaks_after_content_is_no_second_answer(
    router: RunningRouter, add_node: AddNode
) -> None:
    breaking = await add_node(router, "a", broken_after_content)
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    spare = await add_node(router, "b", stream)
    assert (await in_band_error(caller))["code"] == "node_failed"
    assert request_counts(breaking, spare) == [1, 0]
    await router.idle()
    assert failing(router) == {"id-a": 1}
    caller = await router.post(STREAM)
    assert await caller.head() == 200 and caller.headers["x-fleet-node"] == "b"
    assert 'outcome="node_failed"' in router.core.metrics.text().decode()


def failing(router: RunningRouter) -> dict[str, int]:
    """The nodes that requests had better not be sent to, and how often each failed."""
    return {each.node_id: each.failures for each in router.core.traffic.breakers()}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_fault_09_two_failures_before_content_are_an_error_and_no_success(
    router: RunningRouter, tmp_path: Path, path: str
) -> None:
    script = EngineScript(models=(ScriptedModel("m"),), step_failure_after_tokens=0)
    async with contextlib.AsyncExitStack() as stack:
        for name in ("a", "b"):
            agent = await stack.enter_async_context(running(tmp_path / name, script))
            await add_real(router, agent, name)
        caller = await router.post({**MESSAGE, "stream": True}, path)
        assert await caller.head() >= 500
        assert caller.headers["content-type"].startswith("application/json")
        assert b"message_start" not in await caller.body()


async def hello_and_hang(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    await request.gone.wait()


async def test_fault_10_a_stream_that_stalls_never_looks_finished(
    tmp_path: Path, start_node: StartNode
) -> None:
    async with running_router(tmp_path, stall_s=0.6) as router:
        await router.add(await start_node(foreign(hello_and_hang)), kind="openai")
        caller = await router.post(STREAM)
        await caller.head()
        assert await caller.chunk() == HELLO
        assert (await in_band_error(caller))["code"] == "node_failed"
        await router.idle()
        assert failing(router) == {"id-a": 1}
        assert 'outcome="node_failed"' in router.core.metrics.text().decode()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_node_that_is_well_and_makes_no_token_is_left(
    tmp_path: Path, streams: bool
) -> None:
    models = (ScriptedModel("m"),)
    async with contextlib.AsyncExitStack() as stack:
        router = await stack.enter_async_context(running_router(tmp_path, stall_s=2.5))
        wedged = EngineScript(models=models, wedge=True)
        first = await stack.enter_async_context(running(tmp_path / "a", wedged))
        await add_real(router, first, "a")
        caller = await router.post({**MESSAGE, "stream": streams})
        await first.until_active()
        other = await stack.enter_async_context(running(tmp_path / "b", EngineScript(models)))
        await add_real(router, other, "b")
        assert b"error" not in await caller.body()
        assert (caller.status, caller.headers["x-fleet-node"]) == (200, "b")
        # It is not tried again while it makes no progress.
        for _ in range(5):
            caller = await router.post(MESSAGE)
            assert await caller.head() == 200
            assert caller.headers["x-fleet-node"] == "b"


async def test_a_node_whose_gpu_fails_is_failing_and_not_wedged(
    router: RunningRouter, tmp_path: Path
) -> None:
    models = (ScriptedModel("m"),)
    broken = EngineScript(models, step_failure_after_tokens=0, step_failure_text="[METAL] No.")
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(tmp_path / "a", broken))
        await add_real(router, first, "a")
        assert await (await router.post(MESSAGE)).head() == 503
        other = await stack.enter_async_context(running(tmp_path / "b", EngineScript(models)))
        await add_real(router, other, "b")
        for _ in range(5):
            # Before its content a failure costs the caller nothing.
            caller = await router.post(MESSAGE)
            assert await caller.head() == 200
            assert caller.headers["x-fleet-node"] == "b"
        assert [*failing(router)] == [first.app.agent.identity.node_id]
        assert {view.stalled for view in router.core.fleet.snapshot} == {frozenset()}


def foreign(script: Any, model: str = "m") -> Any:
    """The script of an OpenAI-compatible server with one model."""

    async def serve(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(json.dumps({"data": [{"id": model}]}).encode())
        else:
            await script(request)

    return serve


# --- what has to pass as it is ---


BINARY = os.urandom(200_000)


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_fault_11_what_is_no_text_passes_with_its_type(
    router: RunningRouter, add_node: AddNode, body: dict[str, object]
) -> None:
    async def script(request: Request) -> None:
        await request.answer(BINARY, content_type="audio/wav")

    await add_node(router, "a", script)
    caller = await router.post(body)
    assert await caller.body() == BINARY
    assert caller.headers["content-type"] == "audio/wav"


async def test_fault_12_a_long_stream_arrives_whole_however_slowly_it_is_read(
    router: RunningRouter, add_node: AddNode
) -> None:
    sent: list[bytes] = []
    go_on, ended = asyncio.Event(), asyncio.Event()

    def is_passed_on() -> bool:
        (connection,) = cast(set[ClientConnection], router.state.connections)
        return not connection.write_paused

    async def piece(request: Request) -> None:
        sent.append(b'data: {"n":%d,"x":"%b"}\n\n' % (len(sent), b"y" * 4000))
        await request.write(sent[-1])
        await asyncio.sleep(0)

    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await piece(request)
        await go_on.wait()
        while is_passed_on():
            await piece(request)
        # Ends with its connection: what the router holds then has to be read all the same.
        await piece(request)
        request.writer.write_eof()
        await request.wait_gone()
        ended.set()

    await add_node(router, "a", script)
    caller = await router.post(STREAM)
    await caller.head()
    taking = cast(asyncio.Transport, caller.writer.transport)
    for transport, option in (
        (next(iter(router.state.connections)).transport, socket.SO_SNDBUF),
        (taking, socket.SO_RCVBUF),
    ):
        # The system keeps little of what nobody reads.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 1 << 15)
    taking.pause_reading()
    go_on.set()
    await asyncio.wait_for(ended.wait(), WAIT_S)
    assert not is_passed_on()
    taking.resume_reading()
    assert await caller.body() == b"".join(sent)


async def test_fault_13_a_node_that_never_answers_delays_no_other(
    router: RunningRouter,
    add_node: AddNode,
    start_node: StartNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CONNECT_TIMEOUT_S <= 5.0
    monkeypatch.setattr(upstream_module, "CONNECT_TIMEOUT_S", 0.5)
    silent = await add_node(router, "a", hang)
    waiting = [await router.post(WHOLE) for _ in range(64)]
    await until(lambda: request_counts(silent)[0] >= 8)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        # Its system takes connections and nobody reads them, so that no TLS begins.
        url = f"https://127.0.0.1:{deaf.getsockname()[1]}"
        router.core.watcher.start(node_record(url, "deaf"))
        status = node_status(model_status("unheard"), node_id="id-deaf")
        router.core.fleet.on_status("id-deaf", status)
        unheard = await router.post({"model": "unheard"})
        server = await start_node(foreign(whole, "other"))
        await router.add(server, "c", "openai", accepted=("other",))
        async with asyncio.timeout(WAIT_S):
            answers = [await router.post({"model": "other"}) for _ in range(20)]
            for caller in answers:
                assert await caller.head() == 200
        async with asyncio.timeout(WAIT_S):
            assert "deaf took no connection" in (await unheard.error())["message"]
    for caller in waiting:
        caller.leave()
    await router.idle()


# --- framing ---


async def test_fault_14_a_body_in_chunks_reaches_the_node_with_a_length(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", whole)
    body = json.dumps({**WHOLE, "messages": []}).encode()
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:5], body[5:]))
    caller = await router.send(
        "POST",
        CHAT,
        parts + b"0\r\n\r\n",
        authorization=f"Bearer {router.key}",
        transfer_encoding="chunked",
    )
    assert await caller.head() == 200
    sent = node.requests[-1]
    assert sent.header("transfer-encoding") is None
    assert sent.header("content-length") == str(len(body)) and sent.body == body


async def stream_with_a_length(request: Request) -> None:
    await request.write(answer_bytes(HELLO + DONE, content_type="text/event-stream"))


async def whole_in_chunks(request: Request) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    await request.write(head + b"connection: keep-alive\r\nkeep-alive: 5\r\n\r\n")
    await request.write(b"2\r\n{}\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "script", "length"),
    [(STREAM, stream_with_a_length, False), (WHOLE, whole_in_chunks, True)],
)
async def test_fault_15_an_answer_has_a_length_or_chunks_and_never_both(
    router: RunningRouter, add_node: AddNode, body: Any, script: Any, length: bool
) -> None:
    await add_node(router, "a", script)
    caller = await router.post(body)
    assert await caller.body() in (HELLO + DONE, b"{}")
    assert ("content-length" in caller.headers) is length
    assert ("transfer-encoding" in caller.headers) is not length
    assert "keep-alive" not in caller.headers
