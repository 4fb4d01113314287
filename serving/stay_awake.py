"""The setting that decides when a Mac is kept awake."""

from enum import StrEnum


class StayAwake(StrEnum):
    """Times at which the Mac is kept awake."""

    BUSY = "busy"
    """While there is work."""
    ALWAYS = "always"
    """While the process runs."""
    NEVER = "never"


STAY_AWAKE = "|".join(StayAwake)
