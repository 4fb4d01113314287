"""How much stored KV an engine keeps while the machine is short of memory. Pure.

macOS calls it a warning when little is free beside what programs have wired, which a Mac that
serves a model may always be near to. So what is stored gives way step by step, and never the
session that goes on now: what an agent sends next still finds its prefix.
"""

from dataclasses import dataclass

from node.ipc.messages import Pressure

STEP_S = 30.0
"""Between two changes of the cap."""
CUT_SHARE = 0.75
"""Of what is stored, what a step leaves while memory is short."""
GROWTH_SHARE = 0.25
"""Of the lease, what a step gives back once memory is no longer short."""
_SESSIONS = 16
"""The last ones that count for how large a session is: some requests are much smaller."""


@dataclass(frozen=True, slots=True)
class Held:
    """Of stored KV, in bytes."""

    stored_bytes: int
    pinned_bytes: int
    lease_bytes: int
    """What may be stored while memory is not short."""


class StoredCap:
    """Most stored KV that an engine keeps: `None` while its lease alone says that. Times are of
    one monotonic clock."""

    def __init__(self) -> None:
        self._level = Pressure.NONE
        self._bytes: int | None = None
        """Before the floor that pinned KV and a session are."""
        self._cut_s = float("-inf")
        self._grown_s = float("-inf")
        self._sessions: dict[str, int] = {}

    @property
    def is_free(self) -> bool:
        """Whether memory is not short, and has not been for long enough."""
        return self._level is Pressure.NONE and self._bytes is None

    def note_session(self, uid: str, nbytes: int) -> None:
        """What the KV of a request takes that is stored, or read from disk."""
        self._sessions[uid] = max(nbytes, self._sessions.pop(uid, 0))
        if len(self._sessions) > _SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def feed(self, level: Pressure, held: Held, now_s: float) -> int | None:
        """The cap at this moment."""
        if level is not self._level:
            if level is Pressure.NONE:
                self._grown_s = now_s
            self._level = level
        if level is Pressure.HARD:
            self._bytes = 0
        elif level is Pressure.SOFT:
            self._cut(held, now_s)
        elif self._bytes is not None:
            self._grow(held, self._bytes, now_s)
        return None if self._bytes is None else self._floored(held, self._bytes)

    def due_s(self) -> float | None:
        """When the cap changes next, if memory stays as it is; None: it does not."""
        if self._level is Pressure.SOFT:
            return self._cut_s + STEP_S
        if self._level is Pressure.HARD or self._bytes is None:
            return None
        return self._grown_s + STEP_S

    def _cut(self, held: Held, now_s: float) -> None:
        if now_s >= self._cut_s + STEP_S:
            most_bytes = held.stored_bytes if self._bytes is None else self._bytes
            self._bytes = int(min(held.stored_bytes, most_bytes) * CUT_SHARE)
            self._cut_s = now_s

    def _grow(self, held: Held, most_bytes: int, now_s: float) -> None:
        if now_s >= self._grown_s + STEP_S:
            grown_bytes = self._floored(held, most_bytes) + int(held.lease_bytes * GROWTH_SHARE)
            self._bytes = None if grown_bytes >= held.lease_bytes else grown_bytes
            self._grown_s = now_s

    def _floored(self, held: Held, most_bytes: int) -> int:
        floor_bytes = held.pinned_bytes
        if self._level is not Pressure.HARD:
            floor_bytes += max(self._sessions.values(), default=0)
        return min(max(most_bytes, floor_bytes), held.lease_bytes)
