"""A server that is stopped by an event, and does not poll for it."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from serving.http import quiet_server
from serving.http.quiet_server import QuietServer, Stop
from tests.fakes import NO_TLS

WAIT_S = 20.0


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def serving(stop: Stop) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """The address of a quiet server, and the task that serves."""
    config = uvicorn.Config(answer, lifespan="off", log_level="warning")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(QuietServer(config, stop).serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", task
        finally:
            stop.set()
            async with asyncio.timeout(WAIT_S):
                await task


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that wake for nothing but their end."""
    monkeypatch.setattr(quiet_server, "DATE_S", 600.0)


@pytest.mark.usefixtures("sleepy")
async def test_ends_at_once_when_another_thread_stops_it() -> None:
    stop = Stop()
    async with (
        serving(stop) as (url, task),
        httpx.AsyncClient(verify=NO_TLS) as client,
    ):
        assert (await client.get(url)).status_code == 200
        threading.Thread(target=stop.set).start()
        await asyncio.wait_for(task, WAIT_S)


@pytest.mark.usefixtures("sleepy")
async def test_ends_where_it_was_stopped_before_it_began() -> None:
    stop = Stop()
    stop.set()
    async with serving(stop) as (_, task):
        await asyncio.wait_for(task, WAIT_S)


@pytest.mark.usefixtures("sleepy")
async def test_wakes_for_nothing_while_nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, on_tick = 0, QuietServer.on_tick

    async def counted(server: QuietServer, counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        return await on_tick(server, counter)

    monkeypatch.setattr(QuietServer, "on_tick", counted)
    stop = Stop()
    async with serving(stop) as (url, task), httpx.AsyncClient(verify=NO_TLS) as client:
        assert (await client.get(url)).status_code == 200
        # What is to be seen is that nothing happens.
        await asyncio.wait({task}, timeout=0.3)
        assert ticks == 1


async def test_a_stop_that_nobody_waits_for_any_more_is_no_error() -> None:
    stop = Stop()

    async def wait() -> None:
        await stop.wait(0.0)

    await asyncio.to_thread(asyncio.run, wait())
    stop.set()
    assert stop.is_set()


async def test_the_date_of_answers_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_server, "DATE_S", 0.01)
    now_s = 1_000_000_000.0
    monkeypatch.setattr("uvicorn.server.time.time", lambda: now_s)
    async with (
        serving(Stop()) as (url, _),
        httpx.AsyncClient(verify=NO_TLS) as client,
        asyncio.timeout(WAIT_S),
    ):
        assert (await client.get(url)).headers["date"] == "Sun, 09 Sep 2001 01:46:40 GMT"
        now_s += 60.0
        while (await client.get(url)).headers["date"] != "Sun, 09 Sep 2001 01:47:40 GMT":
            pass


def test_a_signal_wakes_the_loop() -> None:
    code = (
        "import asyncio, signal, sys, uvloop\n"
        "from serving.http.quiet_server import Stop\n"
        "stop = Stop()\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
        "async def main():\n"
        "    print('waits', flush=True)\n"
        "    await stop.wait(600.0)\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
        "    runner.run(main())\n"
        "print('ended')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=WAIT_S)
    assert printed == b"ended\n"
