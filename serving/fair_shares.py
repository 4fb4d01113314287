"""Divides a limited resource among clients, so that none of them can starve the others."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_WAITING = 512
"""Most requests for shares that one client may have waiting."""


class Share:
    """A client's share of the resource, which it returns once."""

    def __init__(self, shares: "FairShares", caller: str, size: int) -> None:
        self._shares = shares
        self._caller = caller
        self.size = size

    def resize(self, size: int) -> None:
        """Changes the size of the share at once, even if that exceeds the total."""
        self._shares.change(self._caller, size - self.size)
        self.size = size

    def release(self) -> None:
        self.resize(0)


class FairShares:
    """Grants shares of `total` to clients in turn, each client's in the order of its requests.

    A client with a share gets another one only if both together are no larger than what is free: a
    single client gets half, two get a third each, so that some is always free for the next client.
    A client without a share may use all that is free, and comes before those that have one.
    """

    def __init__(self, total: int, refusal: type[Exception]) -> None:
        """`refusal`: the error for a client with too many requests waiting."""
        self._total = total
        self._refusal = refusal
        self._granted: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Waiting requests by client; the first client is the next in turn."""

    @property
    def granted_total(self) -> int:
        return self._granted.total()

    async def acquire(self, caller: str, size: int) -> Share:
        """Waits for a share of this size, or of the total if that is less. Raises the refusal."""
        size = min(size, self._total)
        queue = self._waiting.setdefault(caller, deque())
        if len(queue) >= MOST_WAITING:
            raise self._refusal
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append((size, granted))
        self._grant()
        share = Share(self, caller, size)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                share.release()
            else:
                self._forget(caller, granted)
            raise
        return share

    async def acquire_within(self, caller: str, size: int, wait_s: float) -> Share:
        """Like `acquire`, but also raises the refusal after `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                return await self.acquire(caller, size)
        except TimeoutError:
            raise self._refusal from None

    @asynccontextmanager
    async def acquired(self, caller: str, size: int) -> AsyncIterator[None]:
        """Takes a share for the duration of the block."""
        share = await self.acquire(caller, size)
        try:
            yield
        finally:
            share.release()

    def change(self, caller: str, by: int) -> None:
        """Changes the size of a client's shares. Called by `Share.resize` only."""
        self._granted[caller] += by
        if not self._granted[caller]:
            del self._granted[caller]
        if by < 0:
            self._grant()

    def _forget(self, caller: str, granted: asyncio.Future[None]) -> None:
        """Removes a cancelled request; those behind it may be granted."""
        queue = self._waiting.get(caller, deque())
        self._waiting[caller] = deque(each for each in queue if each[1] is not granted)
        self._grant()

    def _grant(self) -> None:
        while (caller := self._next()) is not None:
            queue = self._waiting.pop(caller)
            size, granted = queue.popleft()
            self._granted[caller] += size
            granted.set_result(None)
            if queue:
                # The client goes to the end of the queue.
                self._waiting[caller] = queue
        for caller in [caller for caller, queue in self._waiting.items() if not queue]:
            del self._waiting[caller]

    def _next(self) -> str | None:
        """The client whose first request can be granted now; None if there is none."""
        left = self._total - self.granted_total
        first = {caller: queue[0][0] for caller, queue in self._waiting.items() if queue}
        without_share = {
            caller: size for caller, size in first.items() if not self._granted[caller]
        }
        for caller, size in without_share.items():
            if size <= left:
                return caller
        if without_share:
            # Shares that are returned next are for these clients.
            return None
        return next((each for each in first if self._granted[each] + first[each] <= left), None)
