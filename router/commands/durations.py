"""Durations as the command line spells them."""

from router.commands.client import CommandFailed
from serving.setting import BadSetting
from serving.setting_kinds import read_duration_s


def read_s(text: str) -> float:
    """Converts 90s, 2m30s, 10m, 2h, 1d, 2w or a plain number to seconds, more than 0. Raises
    `CommandFailed`."""
    try:
        seconds = read_duration_s(text)
    except BadSetting as error:
        raise CommandFailed(str(error)) from None
    if not seconds:
        raise CommandFailed(f"{text!r} is not a duration of more than 0.")
    return seconds
