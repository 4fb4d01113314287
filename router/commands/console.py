"""What commands print on: tables and JSON on standard output, progress on standard error."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from router.commands.tables import Cell, Contents, lay_out, print_on
from serving.terminal.output import put, put_json, shown
from serving.terminal.screen import Screen

_PIPE_COLUMNS = 200
"""Width of a table that goes to a file or a pipe, where no window limits it."""
_SILENT_S = 2.0
"""How long work may go on without a word where no spinner can turn."""


def out() -> Console:
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return Screen(width=width)


def err() -> Console:
    return Screen(stderr=True)


def print_json(value: Any) -> None:
    put_json(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    less: Sequence[str] = (),
    *,
    wide: bool = False,
) -> None:
    """A table; a column whose head begins with `>` holds numbers. Those in `less` are left out,
    in that order, where the window has no room for them and `wide` is not asked for."""
    console = out()
    contents = Contents(columns, rows, less)
    layout = lay_out(contents, sys.maxsize if wide else console.width)
    print_on(console, layout)
    if layout.left_out:
        missing = ", ".join(layout.left_out)
        say(f"For want of room without: {missing}. --wide shows all.", style="dim")


def fits(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """True if the window has room for the table, with its heads and texts wrapped."""
    width = out().width
    return lay_out(Contents(columns, rows), width).width <= width


def say(text: str, style: str = "") -> None:
    """A sentence on standard output."""
    out().print(Text(shown(text), style=style), soft_wrap=True)


def tell(text: str, style: str = "") -> None:
    """A sentence on standard error."""
    err().print(Text(shown(text), style=style), soft_wrap=True)


@contextmanager
def progress(what: str, *, in_pipes: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows that work goes on, and for how long: a spinner, or one line where there is none. What
    is yielded replaces its words, from any thread."""
    console = err()
    if not console.is_terminal:
        timer = threading.Timer(_SILENT_S, lambda: put(f"{shown(what)} …", err=True))
        timer.daemon = True
        if in_pipes:
            timer.start()
        try:
            yield lambda _words: None
        finally:
            timer.cancel()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda words: bar.update(task, description=words)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far work is, as often as it is told: bytes done, bytes in all. One line
    where there is no terminal."""
    console = err()
    if not console.is_terminal:
        put(f"{shown(what)} …", err=True)
        yield lambda _done_bytes, _total_bytes: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)

        def show(done_bytes: int, total_bytes: int) -> None:
            bars.update(task, completed=done_bytes, total=total_bytes or None)

        yield show
