"""Ends a server with its parent process, whose end closes the server's standard input."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

from serving.errors import CannotStart


def open_stdin() -> int:
    """The file descriptor of standard input. Raises `CannotStart` if it is closed already."""
    if sys.stdin is None:
        raise CannotStart("Standard input is closed, and the server would end with it at once.")
    return sys.stdin.fileno()


def watch_end(
    descriptor: int, stop: Callable[[], None], exit_after_s: float | None = None
) -> threading.Thread:
    """Calls `stop` at the end of the file, from a thread of its own. Exits the process if it still
    runs `exit_after_s` later."""

    def read() -> None:
        # Not through sys.stdin: its lock, which this thread would hold, aborts the interpreter's
        # exit.
        with contextlib.suppress(OSError):
            while os.read(descriptor, 4096):
                pass
        stop()
        if exit_after_s is not None:
            # A daemon thread wakes up from this only if the orderly shutdown takes too long.
            threading.Event().wait(exit_after_s)
            os._exit(1)

    thread = threading.Thread(target=read, name="stdin", daemon=True)
    thread.start()
    return thread
