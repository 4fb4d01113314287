"""Callers that leave: their work is cancelled, in whatever phase it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

from router.errors import ShuttingDown

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SWEEP_S = 0.05
"""A request is watched once it has run for one to two sweeps."""


class Leavers:
    """Watches whether the callers of running requests leave.

    A request that is answered at once needs no task of its own for that, so one timer for all
    requests starts to watch those that have been there for a while.
    """

    def __init__(self) -> None:
        self._fresh: set[_Watch] = set()
        self._older: set[_Watch] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def cancel_when_left(self, work: Awaitable[None], receive: Receive) -> None:
        """Awaits `work`, and cancels it when the client disconnects. Raises `ShuttingDown` where
        somebody else cancels it: nobody else does.

        The caller must have read the whole request body: what `receive` then yields is the
        disconnect.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        watch = _Watch(task, receive)
        self._fresh.add(watch)
        if self._timer is None:
            self._arm()
        try:
            await work
        except asyncio.CancelledError:
            task.uncancel()
            if not watch.left:
                raise ShuttingDown from None
        finally:
            self._fresh.discard(watch)
            self._older.discard(watch)
            watch.end()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        for watch in self._older:
            watch.begin()
        self._older, self._fresh = self._fresh, set()
        if self._older:
            self._arm()


class _Watch:
    """Cancels a task when its client leaves."""

    def __init__(self, task: asyncio.Task[None], receive: Receive) -> None:
        self.left = False
        self._task = task
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
