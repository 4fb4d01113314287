"""A server that sleeps while nobody calls. uvicorn wakes ten times a second to see whether it is to
end, which costs a laptop's battery."""

import asyncio
import contextlib

import uvicorn

DATE_S = 1.0
"""How old the date of an answer may be."""


class Stop:
    """The wish that a server ends: from any thread, or from a handler of signals."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            loop, event = self._waiting
            # One that is closed has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_s: float) -> None:
        """Until it is set, or for so long."""
        event = asyncio.Event()
        # Before it is looked at: whoever sets it meanwhile is seen, or wakes the loop.
        self._waiting = asyncio.get_running_loop(), event
        if not self._is_set:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await event.wait()


class QuietServer(uvicorn.Server):
    """uvicorn, ended by a `Stop`."""

    def __init__(self, config: uvicorn.Config, stop: Stop) -> None:
        super().__init__(config)
        self._stop = stop

    async def main_loop(self) -> None:
        # The number of the tick is 0 where the date is to be renewed.
        while not await self.on_tick(0):
            await self._stop.wait(DATE_S)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stop.is_set()
