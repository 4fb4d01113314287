"""Lengths of time in the words of the command line."""

from router.commands.client import CommandFailed
from serving import units


def read_s(text: str) -> float:
    """Seconds of 90s, 10m, 2h, 1d, 2w or a plain number of seconds. Raises `CommandFailed`."""
    try:
        seconds = units.read_duration_s(text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise CommandFailed(
            f"{text!r} is no length of time; one looks like 90s, 10m, 2h, 1d or 2w, and is at most "
            "a year."
        )
    return seconds
