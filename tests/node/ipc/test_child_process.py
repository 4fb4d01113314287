"""Processes that wait for work."""

import asyncio
import socket
from collections.abc import Iterator

import psutil
import pytest

from node.engine.scripted.script import Script, encode_script
from node.engines.link import EngineLink
from node.ipc import child_process
from node.ipc.child_process import ChildProcess, Spare, linked_sockets, spawn
from node.ipc.messages import EngineSpec, MemoryLease
from tests.node.engines.processes import engine_pid

SPEC = EngineSpec("scripted", "scripted", "", 1, MemoryLease(1, 1, 0), encode_script(Script()))
pytestmark = pytest.mark.usefixtures("link_bytes")


@pytest.fixture
def children() -> Iterator[psutil.Process]:
    own = psutil.Process()
    before = set(own.children())
    yield own
    assert set(own.children()) <= before


async def filled(spare: Spare) -> ChildProcess:
    async with asyncio.timeout(20):
        while (taken := spare.take()) is None:
            spare.refill(0.0)
            await asyncio.sleep(0)
    return taken


async def test_a_process_that_waited_loads_the_model_it_is_sent(children: psutil.Process) -> None:
    spare = Spare("node.engine.worker", "scripted")
    waiting, link = await filled(spare), EngineLink()
    loaded = await link.start(SPEC, waiting)
    assert (loaded.max_rows, engine_pid(link)) == (1, waiting.process.pid)
    assert spare.take() is None
    assert await link.stop(5.0) == 0
    await spare.close()


async def test_one_that_nobody_took_ends_with_its_owner(children: psutil.Process) -> None:
    spare = Spare("node.engine.worker", "scripted")
    kept = await spawn("node.engine.worker", "scripted")
    spare._ready = kept
    spare.refill(0.0)
    await spare.close()
    assert not kept.alive
    assert spare.take() is None


async def test_one_that_died_is_not_given(children: psutil.Process) -> None:
    spare = Spare("node.engine.worker", "scripted")
    spare._ready = await spawn("node.engine.worker", "scripted")
    spare._ready.process.kill()
    await spare._ready.process.wait()
    assert spare.take() is None


async def test_a_spare_for_no_engine_stays_empty() -> None:
    spare = Spare()
    spare.refill(0.0)
    assert spare._work is None
    assert spare.take() is None
    await spare.close()


async def test_none_is_started_where_it_is_not_wanted_any_more() -> None:
    spare = Spare("node.engine.worker", "scripted")
    spare.refill(0.0, lambda: False)
    assert spare._work is not None
    await spare._work
    assert spare.take() is None
    await spare.close()


async def test_a_process_that_cannot_be_started_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(module: str, *arguments: str) -> ChildProcess:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(child_process, "spawn", fail)
    spare = Spare("node.engine.worker", "scripted")
    spare.refill(0.0)
    assert spare._work is not None
    await spare._work
    assert "Cannot allocate memory" in caplog.text
    await spare.close()


@pytest.mark.parametrize("link_bytes", [child_process.LINK_BYTES], indirect=True)
def test_a_link_has_more_room_than_a_socket_pair_has_by_itself() -> None:
    usual, linked = socket.socketpair(), linked_sockets()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        least_bytes = usual[0].getsockopt(socket.SOL_SOCKET, option)
        for end in linked:
            assert end.getsockopt(socket.SOL_SOCKET, option) > least_bytes
    for end in (*usual, *linked):
        end.close()
