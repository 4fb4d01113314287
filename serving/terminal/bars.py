"""Progress of commands, on standard error."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from serving.terminal.output import put, shown
from serving.terminal.screen import Screen

_SILENT_S = 2.0
"""Seconds of work without a terminal after which a progress line is printed."""


def shown_bars(*columns: ProgressColumn) -> Progress:
    """Bars on standard error; disabled if that is no terminal."""
    console = Screen(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress(what: str, *, in_pipes: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows that work is in progress and for how long: a spinner, or one line without a terminal.
    Yields a function that replaces the text, from any thread."""
    console = Screen(stderr=True)
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
