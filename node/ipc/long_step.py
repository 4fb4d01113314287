"""How far an engine may be within a step of which it tells nothing before its end."""

from collections.abc import Callable

import msgspec

PATIENCE = 4.0
"""A step counts as progress up to so many times what it was expected to take."""
MARKS = 64
"""Signs of progress in that time, so that whoever waits for one sees them come."""


class LongStep(msgspec.Struct, frozen=True, tag="long_step"):
    """The engine is about to be in one step for seconds; what it tells next comes after it."""

    expected_s: float


class LongStepWatch:
    """The long steps of one engine. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks = 0
        """Of steps that are over."""
        self._began_s = 0.0
        self._expected_s = 0.0
        """Of the one that is running; 0: none is known to."""

    @property
    def marks(self) -> int:
        """Grows while a step goes on that may; never falls."""
        if not self._expected_s:
            return self._marks
        share = (self._clock() - self._began_s) / (PATIENCE * self._expected_s)
        return self._marks + int(MARKS * min(share, 1.0))

    def begin(self, expected_s: float) -> None:
        """The engine is about to do one; the one before is over."""
        self.end()
        self._began_s, self._expected_s = self._clock(), expected_s

    def end(self) -> None:
        """The engine has told something that comes after it."""
        self._marks, self._expected_s = self.marks, 0.0
