"""The result of a check of this machine."""

from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: its level, a sentence, and advice."""

    name: str
    level: Level
    sentence: str
    advice: str = ""
    figures: dict[str, int] = field(default_factory=dict)
    """The figures in the sentence, for scripts; sizes in bytes."""
    reasons: tuple[str, ...] = ()
    """Lines that explain the figures."""
