"""Bounds the memory and the threads that one agent spends on the bodies of its requests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from node.errors import TooManyWaiting
from node.protocol.bounds import MAX_BODY_BYTES
from node.settings import THREAD_BODY_BYTES
from serving.fair_shares import FairShares, Share

MAX_OPEN_BYTES = 4 * MAX_BODY_BYTES
"""Most bytes of bodies of open requests; each counts from before it is read. A single caller gets
half at most."""
WAIT_S = 20.0
"""Seconds that a request waits for room before its body is read."""
THREADS = 2

T = TypeVar("T")


class Bodies:
    """Shares the memory for bodies and the threads that parse them fairly among callers."""

    def __init__(self) -> None:
        self._room = FairShares(MAX_OPEN_BYTES, TooManyWaiting)
        self._thread_shares = FairShares(THREADS, TooManyWaiting)
        # Only a few, since each takes the interpreter's lock from the event loop.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="body")

    async def reserve(self, caller: str, size_bytes: int) -> Share:
        """Reserves room for a body. Raises `TooManyWaiting`."""
        return await self._room.acquire_within(caller, size_bytes, WAIT_S)

    async def parse(self, caller: str, body: bytes, parse: Callable[[bytes], T]) -> T:
        """Returns `parse(body)`, which runs in a thread for a large body so that it stalls no
        stream. Raises what `parse` raises."""
        if len(body) <= THREAD_BODY_BYTES:
            return parse(body)
        async with self._thread_shares.acquired(caller, 1):
            return await asyncio.get_running_loop().run_in_executor(self._threads, parse, body)
