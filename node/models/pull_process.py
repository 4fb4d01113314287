"""The process that pulls one model for the agent: `python -m node.models.pull_process`.

It is a process of its own since the libraries that download cannot be stopped in the middle, and
since hashing and writing would slow down the agent's streams. Its order is the first line of its
standard input; it ends with the agent, when that input ends. It reports on standard output, a line
at a time.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from node.errors import NodeError
from node.models.pull import Progress, pull
from node.models.store import ModelStore
from node.protocol.lifecycle import PullCommand
from serving.logs.logs import log_like_parent

Write = Callable[[bytes], object]

REPORT_S = 0.2
"""Least seconds between two lines of progress."""


class PullOrder(msgspec.Struct, frozen=True):
    """The line that the pull process reads."""

    store_folder: str
    command: PullCommand


class PullReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that the pull process writes."""

    done_bytes: int = 0
    total_bytes: int = 0
    failure: str = ""
    """The reason why it ends without the model, as a sentence."""
    is_final: bool = False
    """Another try would fail in the same way."""


def main() -> None:
    # Output that libraries print must not come between the lines.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    log_like_parent()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = msgspec.json.decode(line, type=PullOrder)
    threading.Thread(target=_end_with_agent, daemon=True).start()
    try:
        pull(order.command, ModelStore(Path(order.store_folder)), _reporter(lines.write))
    except NodeError as error:
        _write_report(lines.write, PullReport(failure=error.message, is_final=error.is_final))
    except OSError as error:
        _write_report(lines.write, PullReport(failure=f"The pull cannot continue: {error}."))


def _end_with_agent() -> None:
    # Not through sys.stdin: its lock, which this thread would hold, aborts the interpreter's exit.
    while os.read(0, 4096):
        pass
    os._exit(1)


def _reporter(write: Write) -> Progress:
    reported_at_s = 0.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal reported_at_s
        now_s = time.monotonic()
        if now_s - reported_at_s >= REPORT_S or done_bytes == total_bytes:
            reported_at_s = now_s
            _write_report(write, PullReport(done_bytes, total_bytes))

    return progress


def _write_report(write: Write, report: PullReport) -> None:
    write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
