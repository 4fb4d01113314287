"""What a check of this machine found."""

from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: how bad it is, what was found, and what to do about it."""

    name: str
    level: Level
    sentence: str
    advice: str = ""
    figures: dict[str, int] = field(default_factory=dict)
    """What the sentence says, for scripts; sizes in bytes."""
    reasons: tuple[str, ...] = ()
    """Why the figures are what they are, a line each."""
