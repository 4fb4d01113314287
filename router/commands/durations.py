"""Durations as the command line spells them."""

from router.commands.client import CommandFailed
from serving import units


def read_s(text: str) -> float:
    """Converts 90s, 10m, 2h, 1d, 2w or a plain number to seconds. Raises `CommandFailed`."""
    try:
        seconds = units.read_duration_s(text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise CommandFailed(
            f"{text!r} is not a duration; one looks like 90s, 10m, 2h, 1d or 2w, and is at most "
            "a year."
        )
    return seconds
