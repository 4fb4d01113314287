"""Limits the memory and the time that request bodies take, fairly among keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from node.protocol.json_size import TOO_MANY, has_too_many_values
from router.errors import BodyTooLarge, TooManyWaiting
from serving.fair_shares import FairShares, Share

MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Limit for the bodies of open requests, counted from before a body is read; one key alone gets
half. A body takes up to four times its length while it is decoded and sent on."""
WAIT_S = 20.0
"""Seconds that a request waits for room before its body is read."""
THREADS = 2
"""Large bodies that are processed at once. Few, since each of these threads competes with the event
loop for the interpreter's lock."""

_THREAD_BYTES = 1 << 20
"""Longer bodies are checked in a thread."""

T = TypeVar("T")


class BodyRoom:
    """Prevents one key from using all the memory for its bodies, or all the threads that process
    them."""

    def __init__(self) -> None:
        self._room = FairShares(MAX_OPEN_BYTES, TooManyWaiting)
        self._thread_shares = FairShares(THREADS, TooManyWaiting)

    async def reserve(self, key_id: str, size_bytes: int) -> Share:
        """Waits for room for a body. Raises `TooManyWaiting`."""
        return await self._room.acquire_within(key_id, size_bytes, WAIT_S)

    async def check(self, key_id: str, body: bytes) -> None:
        """Raises `BodyTooLarge` if decoding the body would take too much memory, in the router or
        in a node."""
        if len(body) <= _THREAD_BYTES:
            has_too_many = has_too_many_values(body)
        else:
            has_too_many = await self.in_thread(key_id, lambda: has_too_many_values(body))
        if has_too_many:
            raise BodyTooLarge(TOO_MANY)

    async def in_thread(self, key_id: str, work: Callable[[], T]) -> T:
        """Runs work that would block the event loop in a thread and returns its result."""
        async with self._thread_shares.acquired(key_id, 1):
            return await asyncio.to_thread(work)
