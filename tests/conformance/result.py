"""The result of a part of the conformance run."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Result:
    """The result of one part. Where `skipped` names why it did not run, the rest is empty."""

    passed: int = 0
    total: int = 0
    failing: list[str] = field(default_factory=list)
    """One line for each case that failed: its id and what differs."""
    skipped: str | None = None
    """A message."""
    notes: list[str] = field(default_factory=list)
    """Lines to print that are no failures."""
