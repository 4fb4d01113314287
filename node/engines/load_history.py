"""The loads of one model: their number, their duration, and the cool-down after failures."""

LOAD_COOL_DOWN_S = 5.0
LAST_COOL_DOWN_S = 300.0
"""Longest wait after a failed load; it doubles at each failure in a row."""


class LoadHistory:
    """Owner of the record of one model's loads. Others read its fields and call its methods."""

    def __init__(self) -> None:
        self.generation = 0
        """Number of the last load, unique on this node."""
        self.load_s: float | None = None
        """Duration of the last successful load."""
        self.failures = 0
        """Number of failed loads."""
        self.overloads = 0
        """Number of times the engine ended because one GPU command was too large."""
        self.cool_down_s = 0.0
        """Wait after the last load; 0 unless that load failed."""
        self.retry_at_s = 0.0
        """Time before which no load is tried again."""

    def begin(self, generation: int) -> None:
        self.generation = generation

    def succeeded(self, load_s: float) -> None:
        self.load_s = load_s
        self.cool_down_s = 0.0

    def failed(self, now_s: float) -> None:
        """Counts the failure, and doubles the wait for the next try."""
        self.failures += 1
        self.cool_down_s = min(max(LOAD_COOL_DOWN_S, 2 * self.cool_down_s), LAST_COOL_DOWN_S)
        self.retry_at_s = now_s + self.cool_down_s

    def overloaded(self) -> None:
        self.overloads += 1

    def allow_retry(self) -> None:
        """Lets the next request try a load; another failure prolongs the cool-down."""
        self.retry_at_s = 0.0

    def forgive(self) -> None:
        """Ends the cool-down."""
        self.retry_at_s = self.cool_down_s = 0.0
