"""Logs the progress of a load."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


def quarters(name: str) -> Callable[[float], None]:
    """Returns a function that logs the progress of a load at each quarter."""
    told = 0

    def tell(fraction: float) -> None:
        nonlocal told
        quarter = int(fraction * 4)
        if told < quarter < 4:
            logger.info("Loading %s: %d %%.", name, quarter * 25)
        told = max(told, quarter)

    return tell
