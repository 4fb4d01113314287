"""Limits the stored KV of an engine while the machine is short of memory. Pure.

macOS already warns when little memory is free beside the wired memory of programs, and a Mac that
serves a model may always be near that point. So stored KV is evicted step by step, and one active
session keeps its KV: the next request of a coding agent still finds its prefix.
"""

from dataclasses import dataclass

from node.ipc.messages import Pressure

STEP_S = 30.0
"""Seconds between two changes of the cap."""
CUT_SHARE = 0.75
"""Share of the stored KV that remains after each step while memory is short."""
GROWTH_SHARE = 0.25
"""Share of the lease by which the cap grows in each step once memory is not short."""
_SESSIONS = 16
"""Number of recent requests whose largest counts as the size of a session, since some requests
are much smaller than the session."""


@dataclass(frozen=True, slots=True)
class StoredKv:
    """The stored KV of an engine and its limit, in bytes."""

    stored_bytes: int
    pinned_bytes: int
    lease_bytes: int
    """Most that may be stored while memory is not short."""


class StoredCap:
    """The most stored KV that an engine keeps: None while only its lease limits it. Times are
    seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._level = Pressure.NONE
        self._bytes: int | None = None
        """The cap before it is raised to the floor that pinned KV and one session need."""
        self._cut_s = float("-inf")
        self._grown_s = float("-inf")
        self._sessions: dict[str, int] = {}

    @property
    def is_unlimited(self) -> bool:
        """True if there is no cap: memory is not short and the cap has grown back to the lease."""
        return self._level is Pressure.NONE and self._bytes is None

    def note_session(self, uid: str, nbytes: int) -> None:
        """Records the bytes of a request's KV that is stored or read from disk."""
        self._sessions[uid] = max(nbytes, self._sessions.pop(uid, 0))
        if len(self._sessions) > _SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def update(self, level: Pressure, stored: StoredKv, now_s: float) -> int | None:
        """Updates the cap and returns it."""
        if level is not self._level:
            if level is Pressure.NONE:
                self._grown_s = now_s
            self._level = level
        if level is Pressure.HARD:
            self._bytes = 0
        elif level is Pressure.SOFT:
            self._cut(stored, now_s)
        elif self._bytes is not None:
            self._grow(stored, self._bytes, now_s)
        return None if self._bytes is None else self._floored(stored, self._bytes)

    def due_s(self) -> float | None:
        """Returns the time of the cap's next change if the pressure stays the same; None if it
        does not change."""
        if self._level is Pressure.SOFT:
            return self._cut_s + STEP_S
        if self._level is Pressure.HARD or self._bytes is None:
            return None
        return self._grown_s + STEP_S

    def _cut(self, stored: StoredKv, now_s: float) -> None:
        if now_s >= self._cut_s + STEP_S:
            most_bytes = stored.stored_bytes if self._bytes is None else self._bytes
            self._bytes = int(min(stored.stored_bytes, most_bytes) * CUT_SHARE)
            self._cut_s = now_s

    def _grow(self, stored: StoredKv, most_bytes: int, now_s: float) -> None:
        if now_s >= self._grown_s + STEP_S:
            grown_bytes = self._floored(stored, most_bytes) + int(stored.lease_bytes * GROWTH_SHARE)
            self._bytes = None if grown_bytes >= stored.lease_bytes else grown_bytes
            self._grown_s = now_s

    def _floored(self, stored: StoredKv, most_bytes: int) -> int:
        floor_bytes = stored.pinned_bytes
        if self._level is not Pressure.HARD:
            floor_bytes += max(self._sessions.values(), default=0)
        return min(max(most_bytes, floor_bytes), stored.lease_bytes)
