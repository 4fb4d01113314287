"""Lengths of time as people write them; `node-agent` takes the same."""

import re

from router.commands.client import CommandFailed

MAX_S = 3.2e7
"""A year."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw]?)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def read_s(text: str) -> float:
    """Seconds of 90s, 10m, 2h, 1d, 2w or a plain number of seconds. Raises `CommandFailed`."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNIT_S[found[2] or "s"] if found else 0.0
    if not 0 < seconds <= MAX_S:
        raise CommandFailed(
            f"{text!r} is no length of time; one looks like 90s, 10m, 2h, 1d or 2w, and is at most "
            "a year."
        )
    return seconds
