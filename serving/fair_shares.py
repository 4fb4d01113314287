"""Something of which there is so much, shared by callers of whom none can keep out the others."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_WAITING = 512
"""Most that one caller may have waiting."""


class Share:
    """What somebody holds; given back once."""

    def __init__(self, shares: "FairShares", caller: str, size: int) -> None:
        self._shares = shares
        self._caller = caller
        self.size = size

    def resize(self, size: int) -> None:
        """Holds so much from now on, at once, even where that is more than there is."""
        self._shares.change(self._caller, size - self.size)
        self.size = size

    def give_back(self) -> None:
        self.resize(0)


class FairShares:
    """Grants shares of `total`, in the order in which each caller asks, and callers in turn.

    A caller may hold no more than what is left is then: one alone gets half, of two each a third,
    so that there is some left for the next one. Who holds nothing gets what there is, and goes
    before those who hold something.
    """

    def __init__(self, total: int, refusal: type[Exception]) -> None:
        """`refusal`: raised for a caller that has too many waiting."""
        self._total = total
        self._refusal = refusal
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """By caller, the one first whose turn it is next."""

    @property
    def held(self) -> int:
        return self._held.total()

    async def take(self, caller: str, size: int) -> Share:
        """Waits for so much, or for all there is if that is less. Raises the refusal."""
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
                share.give_back()
            else:
                self._forget(caller, granted)
            raise
        return share

    @asynccontextmanager
    async def holding(self, caller: str, size: int) -> AsyncIterator[None]:
        """As `take`, for as long as the block runs."""
        share = await self.take(caller, size)
        try:
            yield
        finally:
            share.give_back()

    def change(self, caller: str, by: int) -> None:
        """The caller holds so much more, or less. Ask through `Share.resize`."""
        self._held[caller] += by
        if not self._held[caller]:
            del self._held[caller]
        if by < 0:
            self._grant()

    def _forget(self, caller: str, granted: asyncio.Future[None]) -> None:
        """Somebody waits no more; what stood behind may have its turn."""
        queue = self._waiting.get(caller, deque())
        self._waiting[caller] = deque(each for each in queue if each[1] is not granted)
        self._grant()

    def _grant(self) -> None:
        while (caller := self._next()) is not None:
            queue = self._waiting.pop(caller)
            size, granted = queue.popleft()
            self._held[caller] += size
            granted.set_result(None)
            if queue:
                # Behind all others.
                self._waiting[caller] = queue
        for caller in [caller for caller, queue in self._waiting.items() if not queue]:
            del self._waiting[caller]

    def _next(self) -> str | None:
        """Whose first wish can be granted now."""
        left = self._total - self.held
        first = {caller: queue[0][0] for caller, queue in self._waiting.items() if queue}
        empty_handed = {caller: size for caller, size in first.items() if not self._held[caller]}
        for caller, size in empty_handed.items():
            if size <= left:
                return caller
        if empty_handed:
            # What is given back is for them.
            return None
        return next((each for each in first if self._held[each] + first[each] <= left), None)
