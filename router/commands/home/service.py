"""`router service`: the settings and times of the router as a service."""

import math

from router.commands.serve import LAST_WORDS_S, SHUTDOWN_S, check
from router.settings import settings_from
from serving.setting_sources import Sources

MARGIN_S = 23
"""Seconds in addition, in which usage is written and the registry is closed on a slow disk."""
STOP_S = math.ceil(SHUTDOWN_S + LAST_WORDS_S) + MARGIN_S


def checked_stop_s(sources: Sources) -> int:
    """The seconds after which a router with these settings has ended. Raises `StartError` and
    `CannotStart` if it would not start."""
    check(settings_from(sources.gather()))
    return STOP_S
