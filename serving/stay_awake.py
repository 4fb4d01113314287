"""When a Mac is kept awake, as settings have it."""

from enum import StrEnum


class StayAwake(StrEnum):
    """When the Mac is kept awake."""

    BUSY = "busy"
    """While there is work."""
    ALWAYS = "always"
    """While the process runs."""
    NEVER = "never"


STAY_AWAKE = "|".join(StayAwake)
