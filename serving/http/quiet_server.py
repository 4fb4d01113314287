"""A server that sleeps while there are no requests. uvicorn wakes ten times a second to check if it
is to end, which costs a laptop's battery."""

import asyncio
import contextlib
import socket
from typing import Any, cast

import uvicorn

from serving.http.door import ArrivedConnection, Door, Entry

DATE_S = 1.0
"""Greatest age of the date in a response, in seconds."""


class Stop:
    """A request to stop the server, from any thread or from a signal handler."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            loop, event = self._waiting
            # Nothing waits on a closed loop.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_s: float) -> None:
        """Waits until it is set, or for so long."""
        event = asyncio.Event()
        # Registered before the check, so that a `set` in between is either seen or wakes the loop.
        self._waiting = asyncio.get_running_loop(), event
        if not self._is_set:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await event.wait()


class QuietServer(uvicorn.Server):
    """uvicorn's server, ended by a `Stop`. With an `Entry` it speaks TLS, and plain HTTP with this
    machine only."""

    def __init__(self, config: uvicorn.Config, stop: Stop, entry: Entry | None = None) -> None:
        super().__init__(config)
        self._stop = stop
        self._entry = entry

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._entry is None:
            await super().startup(sockets)
            return
        await super().startup([])
        door = Door(self._entry, self._connection)
        door.open(sockets or [])
        self.servers.append(cast(asyncio.base_events.Server, door))

    def _connection(self) -> ArrivedConnection:
        make: Any = self.config.http_protocol_class
        protocol: ArrivedConnection = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def main_loop(self) -> None:
        # The date is renewed if the number of the tick is 0.
        while not await self.on_tick(0):
            await self._stop.wait(DATE_S)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stop.is_set()
