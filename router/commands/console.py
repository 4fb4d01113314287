"""Output of commands: tables and JSON on standard output, progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from router.commands.tables import Cell, Contents, lay_out, print_on
from serving.terminal import bars
from serving.terminal.output import put, put_json, shown
from serving.terminal.screen import Screen

_PIPE_COLUMNS = 200
"""Width of a table that is written to a file or a pipe, where no window limits it."""


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
    """Prints a table; a column whose head begins with `>` has numbers. The columns in `less` are
    left out, in that order, if the window is too narrow and `wide` is False."""
    console = out()
    contents = Contents(columns, rows, less)
    layout = lay_out(contents, sys.maxsize if wide else console.width)
    print_on(console, layout)
    if layout.left_out:
        missing = ", ".join(layout.left_out)
        print_line(f"Columns left out: {missing}. --wide shows all.", style="dim")


def fits(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """True if the window has room for the table, with its heads and texts wrapped."""
    width = out().width
    return lay_out(Contents(columns, rows), width).width <= width


def print_line(text: str, style: str = "") -> None:
    """Prints a sentence on standard output."""
    out().print(Text(shown(text), style=style), soft_wrap=True)


def print_error(text: str, style: str = "") -> None:
    """Prints a sentence on standard error."""
    err().print(Text(shown(text), style=style), soft_wrap=True)


progress = bars.progress


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows progress; yields a function of (done bytes, total bytes). Prints one line without a
    terminal."""
    console = err()
    if not console.is_terminal:
        put(f"{shown(what)} …", err=True)
        yield lambda _done_bytes, _total_bytes: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as shown_bar:
        task = shown_bar.add_task(what, total=None)

        def show(done_bytes: int, total_bytes: int) -> None:
            shown_bar.update(task, completed=done_bytes, total=total_bytes or None)

        yield show
