"""Sizes and durations as people read and write them."""

import re

MIB = 1024**2
GIB = 1024**3
MAX_DURATION_S = 3.2e7
"""A year."""
_UNIT_S = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)\s*"
_SECONDS = re.compile(_NUMBER)
_DURATION = re.compile("".join(rf"(?:{_NUMBER}{unit}\s*)?" for unit in _UNIT_S))
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def read_duration_s(text: str) -> float:
    """Seconds of `30s`, `10m`, `2m30s`, `2h`, `1d`, `2w` or a plain number of seconds, 0 included.
    Raises `ValueError` for any other text, and for more than a year."""
    text = text.strip()
    if found := _SECONDS.fullmatch(text):
        seconds = float(found[1])
    elif text and (found := _DURATION.fullmatch(text)):
        parts = zip(found.groups(), _UNIT_S.values(), strict=True)
        seconds = sum(float(number) * unit_s for number, unit_s in parts if number)
    else:
        raise ValueError(text)
    if seconds > MAX_DURATION_S:
        raise ValueError(text)
    return seconds


def duration(seconds: float) -> str:
    """Seconds in the largest unit that makes a whole number: 30s, 2m, 1h."""
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _UNIT_S[unit] == 0:
            return f"{seconds / _UNIT_S[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def span(seconds: float) -> str:
    """A rounded length of time in its largest fitting unit: 30 s, 12 min, 5 h, 3 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, days = minutes // 60, minutes // 1440
    return f"{hours} h" if hours < 48 else f"{days} days"


def read_flag(text: str) -> bool:
    """The flag. Raises `ValueError` for a text that means neither yes nor no."""
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise ValueError(text)


def size(size_bytes: int) -> str:
    """Bytes in the units in which memory is sold: 16.0 GiB, 270 MiB, 12 KiB."""
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:.1f} GiB"
    if size_bytes >= MIB:
        return f"{size_bytes / MIB:.0f} MiB"
    return f"{size_bytes / 1024:.0f} KiB"


def gib(size_bytes: float) -> str:
    """Bytes in GiB, for sizes that are compared with each other."""
    return f"{size_bytes / GIB:.1f} GiB"
