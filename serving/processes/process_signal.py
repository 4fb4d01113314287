"""Signals to child processes of an event loop."""

import contextlib
import os
from asyncio.subprocess import Process
from signal import Signals


def send_signal(process: Process, signal: Signals) -> None:
    """Sends the signal unless the process is known to have ended.

    `Process.kill` and `Process.terminate` of asyncio poll the child first. Where it has just ended
    by itself, that poll takes the exit code from the thread that waits for it, which then reports
    255 and logs a warning.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal)
