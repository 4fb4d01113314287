"""Logs the progress of a load."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


def quarters(name: str) -> Callable[[float], None]:
    """Returns a function that logs the progress of a load at each quarter."""
    logged = 0

    def on_progress(fraction: float) -> None:
        nonlocal logged
        quarter = int(fraction * 4)
        if logged < quarter < 4:
            logger.info("Loading %s: %d %%.", name, quarter * 25)
        logged = max(logged, quarter)

    return on_progress
