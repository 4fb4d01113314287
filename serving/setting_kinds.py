"""Kinds of settings that several products have. Their readers raise `BadSetting`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving import units
from serving.setting import BadSetting, Kind, Read
from serving.stay_awake import STAY_AWAKE, StayAwake

_MAX_DIGITS = 12


def read_text(_key: str, text: str) -> str:
    return text


def read_path(key: str, text: str) -> Path:
    """A path. An empty one is refused: Python reads it as the current folder."""
    if not text:
        raise BadSetting(f"{key} must be a path, not {text!r}.")
    return Path(text).expanduser()


def whole_number(least: int, most: int, noun: str = "whole number", metavar: str = "N") -> Kind:
    """Whole numbers from `least` to `most`."""

    def read(key: str, text: str) -> int:
        # Python refuses to convert thousands of digits.
        if not text.isdecimal() or len(text) > _MAX_DIGITS or not least <= int(text) <= most:
            raise BadSetting(f"{key} must be a {noun} from {least} to {most}, not {text!r}.")
        return int(text)

    return Kind(read, metavar, range=f"{least} to {most}")


def one_of(*words: str) -> Kind:
    """One of these words."""

    def read(key: str, text: str) -> str:
        if text not in words:
            raise BadSetting(f"{key} must be one of {', '.join(words)}, not {text!r}.")
        return text

    return Kind(read, "|".join(words))


def read_flag(key: str, text: str) -> bool:
    """A word for yes or no."""
    try:
        return units.read_flag(text)
    except ValueError:
        raise BadSetting(f"{key} must be on or off, not {text!r}.") from None


def read_stay_awake(key: str, text: str) -> StayAwake:
    try:
        return StayAwake(text)
    except ValueError:
        raise BadSetting(f"{key} must be one of {STAY_AWAKE}, not {text!r}.") from None


def read_duration_s(text: str) -> float:
    """Seconds of `30s`, `2m30s`, `10m`, `2h`, `1d`, `2w` or a plain number of seconds, 0
    included."""
    try:
        return units.read_duration_s(text)
    except ValueError:
        raise BadSetting(
            f"{text!r} is not a duration; one looks like 30s, 2m30s, 10m, 2h, 1d or 2w, and is at "
            "most a year."
        ) from None


def keyed(read: Callable[[str], Any]) -> Read:
    """The reader with a key, which its `BadSetting` names."""

    def read_keyed(key: str, text: str) -> Any:
        try:
            return read(text)
        except BadSetting as error:
            raise BadSetting(f"{key}: {error}") from None

    return read_keyed


TEXT = Kind(read_text, "TEXT")
PATH = Kind(read_path, "PATH")
PORT = whole_number(0, 65_535, "port number", "PORT")
FLAG = Kind(read_flag, "", show=lambda is_on: "yes" if is_on else "no", is_flag=True)
DURATION = Kind(keyed(read_duration_s), "TIME", show=units.duration)
STAY_AWAKE_MODE = Kind(read_stay_awake, STAY_AWAKE)
