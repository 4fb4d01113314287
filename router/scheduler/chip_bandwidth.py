"""Memory bandwidth by chip, from which a node's speed is guessed before it has served anything."""

import re

_GB = 1e9
_BANDWIDTH_GB_PER_S = {
    "M1": 68,
    "M1 PRO": 200,
    "M1 MAX": 400,
    "M1 ULTRA": 800,
    "M2": 100,
    "M2 PRO": 200,
    "M2 MAX": 400,
    "M2 ULTRA": 800,
    "M3": 100,
    "M3 PRO": 150,
    "M3 MAX": 400,
    "M3 ULTRA": 819,
    "M4": 120,
    "M4 PRO": 273,
    "M4 MAX": 546,
    "M5": 153,
}
_OTHER_GB_PER_S = 100
_NAME = re.compile(r"\b(M\d+)(?: (PRO|MAX|ULTRA))?\b")


def is_known(chip: str) -> bool:
    return _NAME.search(chip.upper()) is not None


def bandwidth_bytes_per_s(chip: str) -> float:
    """Bytes per second of the named chip's memory. A chip newer than the table has the value of the
    newest one of its kind in it."""
    found = _NAME.search(chip.upper())
    if found is None:
        return _OTHER_GB_PER_S * _GB
    name, kind = found.group(1), found.group(2) or ""
    known = _BANDWIDTH_GB_PER_S.get(f"{name} {kind}".strip())
    if known is None:
        same = [
            speed
            for chip_name, speed in _BANDWIDTH_GB_PER_S.items()
            if chip_name.partition(" ")[2] == kind
        ]
        known = same[-1]
    return known * _GB
