"""Ollama's field `keep_alive`: a number of seconds, or a duration as Go spells it."""

import re
from math import inf, isfinite

WRONG = "keep_alive must be a number of seconds or a duration such as 5m."
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PIECE = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"([-+]?)((?:{_PIECE.pattern})+)", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)
_MOST_CHARS = 64
_MOST_S = 1e9


def keep_alive_s(value: object) -> float | None:
    """Returns the idle seconds after which the model is unloaded, `inf` for never; None if the
    client does not say. Raises `ValueError`."""
    if value is None or value == "":
        return None
    seconds = _seconds(value)
    return inf if seconds < 0 else min(seconds, _MOST_S)


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isfinite(value):
            return float(value)
    elif isinstance(value, str) and len(value) <= _MOST_CHARS:
        if _NUMBER.fullmatch(value):
            return float(value)  # Ollama accepts 0 only; its users mean seconds
        if (found := _DURATION.fullmatch(value)) is not None:
            pieces = _PIECE.findall(found[2])
            seconds = sum(float(number) * _UNITS_S[unit] for number, unit in pieces)
            return -seconds if found[1] == "-" else seconds
    raise ValueError(WRONG)
