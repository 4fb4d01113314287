"""Work ends with its caller, whoever that is and however long it has run."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from router.errors import ShuttingDown
from router.leaving import SWEEP_S, Leavers


class Client:
    """What a server tells of one client."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.asked = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        self.asked.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Work that ends when told, or when it is cancelled."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_work_is_cancelled_when_its_client_leaves_and_nobody_elses_is() -> None:
    leavers, works, clients = Leavers(), [Work(), Work()], [Client(), Client()]
    tasks = [
        asyncio.create_task(leavers.cancel_when_left(work.run(), client.receive))
        for work, client in zip(works, clients, strict=True)
    ]
    async with asyncio.timeout(5):
        clients[0].gone.set()
        await tasks[0]
        assert (works[0].cancelled, works[1].cancelled) == (True, False)
        works[1].done.set()
        await tasks[1]
    assert not works[1].cancelled


async def test_work_that_ends_at_once_is_never_watched() -> None:
    leavers, work, client = Leavers(), Work(), Client()
    work.done.set()
    await leavers.cancel_when_left(work.run(), client.receive)
    loop = asyncio.get_running_loop()
    swept = asyncio.Event()
    loop.call_later(3 * SWEEP_S, swept.set)
    await swept.wait()
    assert not client.asked.is_set()
    assert leavers._timer is None, "with nothing to watch there is no timer"


async def test_each_of_many_requests_is_watched_in_its_turn() -> None:
    leavers = Leavers()
    for _ in range(3):
        work, client = Work(), Client()
        task = asyncio.create_task(leavers.cancel_when_left(work.run(), client.receive))
        async with asyncio.timeout(5):
            await client.asked.wait()
            client.gone.set()
            await task
        assert work.cancelled


async def test_a_cancel_that_is_not_the_clients_is_the_routers_end() -> None:
    leavers, work, client = Leavers(), Work(), Client()
    task = asyncio.create_task(leavers.cancel_when_left(work.run(), client.receive))
    async with asyncio.timeout(5):
        await client.asked.wait()
        task.cancel()
        with pytest.raises(ShuttingDown):
            await task
