"""Work ends with its caller, whoever that is and however long it has run."""

from __future__ import annotations

import asyncio

import pytest

from router.client.disconnect import CancelOnDisconnect
from router.errors import ShuttingDown
from serving.http.exchange import Exchange
from tests.serving.http.test_exchange import Wire, exchange_on


class Work:
    """Work that ends when its event is set, or when it is cancelled."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def begin(work: Work, exchange: Exchange) -> asyncio.Task[None]:
    async def serve() -> None:
        with CancelOnDisconnect(exchange):
            await work.run()

    return asyncio.create_task(serve())


async def test_work_is_cancelled_when_its_caller_leaves_and_nobody_elses_is() -> None:
    works, exchanges = [Work(), Work()], [exchange_on(Wire()), exchange_on(Wire())]
    tasks = [begin(work, exchange) for work, exchange in zip(works, exchanges, strict=True)]
    async with asyncio.timeout(20):
        await works[0].begun.wait()
        exchanges[0].on_lost()
        await tasks[0]
        assert (works[0].cancelled, works[1].cancelled) == (True, False)
        works[1].done.set()
        await tasks[1]
    assert not works[1].cancelled


async def test_work_for_a_caller_that_has_left_already_ends_at_its_first_wait() -> None:
    work, exchange = Work(), exchange_on(Wire())
    exchange.on_lost()
    async with asyncio.timeout(20):
        await begin(work, exchange)
    assert work.cancelled


async def test_a_caller_that_leaves_after_the_work_cancels_nothing() -> None:
    work, exchange = Work(), exchange_on(Wire())
    work.done.set()
    await begin(work, exchange)
    exchange.on_lost()
    assert not work.cancelled


async def test_a_cancelled_task_whose_caller_is_connected_raises_shutting_down() -> None:
    work, exchange = Work(), exchange_on(Wire())
    task = begin(work, exchange)
    async with asyncio.timeout(20):
        await work.begun.wait()
        task.cancel()
        with pytest.raises(ShuttingDown):
            await task
