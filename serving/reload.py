"""Reloads at SIGHUP, the signal by which servers are told to read their settings again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from serving.live_settings import LiveSettings

log = logging.getLogger("mlx_fleet.settings")


async def reload(live: LiveSettings[Any]) -> None:
    """Reads the settings and changes to them; what is wrong with them goes to the log, and nothing
    is changed."""
    try:
        wanted = await asyncio.to_thread(live.read)
    except live.errors as error:
        log.error("Nothing was reloaded: %s", error)
        return
    for sentence in live.change_to(wanted).sentences():
        log.info("%s", sentence)


@contextlib.contextmanager
def reloaded_at_hangup(live: LiveSettings[Any], stop: Callable[[], None]) -> Iterator[None]:
    """Reloads at SIGHUP. The terminal of a product sends it as well when its window is closed: then
    `stop` is called. Without effect outside the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    has_terminal = _has_terminal()

    def on_hangup() -> None:
        if has_terminal and not _has_terminal():
            stop()
            return
        task = loop.create_task(reload(live))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()


def _has_terminal() -> bool:
    """True while standard input is a terminal that is there."""
    try:
        return os.isatty(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        return False
