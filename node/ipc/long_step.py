"""Estimates the progress of an engine within a long step, during which it reports nothing."""

from collections.abc import Callable

import msgspec

PATIENCE = 4.0
"""Factor on the expected time of a step, up to which it counts as progress."""
MARKS = 64
"""Number of progress marks in that time, so that a watchdog sees progress."""


class LongStep(msgspec.Struct, frozen=True, tag="long_step"):
    """The engine begins a step that takes seconds; its next report comes after the step."""

    expected_s: float


class LongStepWatch:
    """The long steps of one engine. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks = 0
        """Marks of completed steps."""
        self._began_s = 0.0
        self._expected_s = 0.0
        """Expected time of the running step; 0 while no long step is known to run."""

    @property
    def marks(self) -> int:
        """Grows while a long step runs within its time; never falls."""
        if not self._expected_s:
            return self._marks
        share = (self._clock() - self._began_s) / (PATIENCE * self._expected_s)
        return self._marks + int(MARKS * min(share, 1.0))

    def begin(self, expected_s: float) -> None:
        """Begins a long step, and ends the one before."""
        self.end()
        self._began_s, self._expected_s = self._clock(), expected_s

    def end(self) -> None:
        """Ends the long step: a report that follows it has arrived."""
        self._marks, self._expected_s = self.marks, 0.0
