"""How many bytes of bodies the router holds, by key, and whose large body is gone through next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from node.protocol.json_size import TOO_MANY, has_too_many_values
from router.errors import BodyTooLarge, TooMuchWaiting
from serving.fair_shares import FairShares, Share

HELD_BYTES = 256 * 1024 * 1024
"""Of requests that are open, each from before its body is read. One key alone gets half. A body
takes up to four times its length while it is gone through and sent on."""
SMALL_BYTES = 64 * 1024
"""A body of no more is not counted: connections are few enough for all of those."""
WAIT_S = 20.0
"""How long a request waits for room before its body is read."""
THREADS = 2
"""Large bodies that are gone through at once. Few: each takes the interpreter's lock from the event
loop."""

_THREAD_BYTES = 1 << 20
"""A longer body is looked through in a thread."""

T = TypeVar("T")


class BodyRoom:
    """No key takes all the memory for what it sends, or all the time for going through it."""

    def __init__(self) -> None:
        self._room = FairShares(HELD_BYTES, TooMuchWaiting)
        self._turns = FairShares(THREADS, TooMuchWaiting)

    async def admitted(self, key_id: str, size_bytes: int) -> Share | None:
        """Room for a body; None for one that is not counted. Raises `TooMuchWaiting`."""
        if size_bytes <= SMALL_BYTES:
            return None
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._room.acquire(key_id, size_bytes)
        except TimeoutError:
            raise TooMuchWaiting from None

    async def check(self, key_id: str, body: bytes) -> None:
        """Raises `BodyTooLarge` for what would take too much memory once it is decoded, by the
        router or by a node."""
        if len(body) <= _THREAD_BYTES:
            has_too_many = has_too_many_values(body)
        else:
            has_too_many = await self.in_thread(key_id, lambda: has_too_many_values(body))
        if has_too_many:
            raise BodyTooLarge(TOO_MANY)

    async def in_thread(self, key_id: str, work: Callable[[], T]) -> T:
        """What the work gives, which takes too long for the event loop."""
        async with self._turns.acquired(key_id, 1):
            return await asyncio.to_thread(work)
