"""Where a product logs, from which level on, and in which form."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from serving.setting import BadSetting, Kind, Setting
from serving.setting_kinds import PATH, one_of

LEVELS = ("debug", "info", "warning", "error")
Form = Literal["text", "json"]


def read_level(key: str, text: str) -> str:
    level = text.strip().lower()
    if level not in LEVELS:
        raise BadSetting(f"{key} must be one of {', '.join(LEVELS)}, not {text!r}.")
    return level


LOG_LEVEL = Kind(read_level, "|".join(LEVELS))
"""A level, in any case of letters."""
_FORMS = one_of("text", "json")

LogLevel = Annotated[
    str,
    Setting(LOG_LEVEL, "Log from this level on.", is_live=True, metavar="LEVEL"),
]
LogFormat = Annotated[Form, Setting(_FORMS, "Log lines of text, or JSON objects.")]
LogFile = Annotated[
    Path | None,
    Setting(
        PATH,
        "Log to this file, rotated at 10 MiB, instead of to the terminal.",
        metavar="FILE",
        example="fleet.log",
    ),
]
"""The settings of a product's logs."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    level: str = "info"
    """One of `LEVELS`."""
    form: Form = "text"
    file: Path | None = None
    """None is standard error."""

    @property
    def level_number(self) -> int:
        """The level as `logging` counts it."""
        return logging.getLevelNamesMapping()[self.level.upper()]
