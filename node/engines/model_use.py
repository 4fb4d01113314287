"""The use of one model: its leases, and the requests that wait for it."""

import asyncio


class ModelUse:
    """Owner of the leases and waiting requests of one model. Others read its fields."""

    def __init__(self) -> None:
        self.leases = 0
        self.used_s = 0.0
        """End of the last request, or of the load."""
        self.abandoned_s: float | None = None
        """Time at which the last request that waited for the load disconnected."""
        self.has_request = False
        """True if a request has waited for this load, not only a load ahead of requests."""
        self._waiting: dict[object, float] = {}
        """Start of the wait, in monotonic seconds, of each waiting request."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the model."""
        return len(self._waiting)

    @property
    def oldest_wait_s(self) -> float:
        """Start of the longest wait; there must be one."""
        return min(self._waiting.values())

    def lease(self) -> None:
        self.leases += 1
        self._idle.clear()

    def end_lease(self, now_s: float) -> bool:
        """Returns True if it was the last lease."""
        self.leases -= 1
        self.used_s = now_s
        if self.leases == 0:
            self._idle.set()
        return self.leases == 0

    async def until_idle(self) -> None:
        """Waits until there is no lease."""
        await self._idle.wait()

    def begin_wait(self, now_s: float, *, ahead: bool) -> object:
        """Adds a waiting request and returns its key; `ahead` means a load ahead of requests."""
        key = object()
        self._waiting[key] = now_s
        self.abandoned_s = None
        self.has_request |= not ahead
        return key

    def end_wait(self, key: object, now_s: float) -> bool:
        """Removes a waiting request; returns True if none is left."""
        del self._waiting[key]
        if not self._waiting:
            self.abandoned_s = now_s
        return not self._waiting

    def begin_load(self) -> None:
        self.abandoned_s = None

    def end_load(self, now_s: float | None) -> None:
        """`now_s` is the time at which the model became ready; None if it did not."""
        self.has_request = False
        if now_s is not None:
            self.used_s = now_s
