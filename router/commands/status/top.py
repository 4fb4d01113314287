"""`router top`: the fleet's screen, kept up to date until q or Ctrl-C."""

import os
import queue
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from router.api.admin.report_views import StatusRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed
from router.commands.status.screen import screen
from router.commands.status.status import fetch, show
from serving.terminal.output import shown

_KEY_S = 0.1
"""Longest time until a key has its effect."""
_QUIT = ("q", "Q", "\x04")
Result = StatusRow | CommandFailed


def run(client: AdminClient, interval_s: float) -> None:
    """Shows the screen until q or Ctrl-C; prints it once if the output is no terminal. Raises
    `CommandFailed` if the router does not respond to the first request; later it waits."""
    if not sys.stdout.isatty():
        show(client, as_json=False)
        return
    status = fetch(client)
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    threading.Thread(
        target=_fetch_always, args=(client, interval_s, results.put), daemon=True
    ).start()
    out = console.out()
    with (
        _ended_by_signals(),
        _keys() as key,
        Live(console=out, screen=True, auto_refresh=False) as live,
    ):
        _follow(_Shown(out, client.access.url, interval_s, status), live, results, key)


class _Shown:
    """The last status, and the failures since."""

    def __init__(self, out: Console, url: str, interval_s: float, status: StatusRow) -> None:
        self._out = out
        self._url = url
        self._interval_s = interval_s
        self._status = status
        self._status_s = time.monotonic()
        self._failure = ""

    def take(self, result: Result) -> None:
        if isinstance(result, CommandFailed):
            self._failure = result.message
            return
        self._status, self._status_s, self._failure = result, time.monotonic(), ""

    def render(self) -> Group:
        head = Text(f"q or Ctrl-C ends · every {self._interval_s:g} s", style="dim")
        if self._failure:
            age = wording.span(time.monotonic() - self._status_s)
            head = Text(f"{shown(self._failure)} Shown: {age} ago. Trying again …", style="red")
        return Group(head, *screen(self._status, self._url, self._out.width))


def _follow(
    now: _Shown, live: Live, results: "queue.SimpleQueue[Result]", key: Callable[[], str]
) -> None:
    drawn_s, width = -1.0, 0
    while True:
        is_new = not results.empty()
        while not results.empty():
            now.take(results.get())
        # A failure's age grows, and the window's width may change.
        if is_new or time.monotonic() - drawn_s >= 1.0 or live.console.width != width:
            live.update(now.render(), refresh=True)
            drawn_s, width = time.monotonic(), live.console.width
        if any(each in _QUIT for each in key()):
            return


def _fetch_always(
    client: AdminClient, interval_s: float, put: Callable[[Result], None]
) -> NoReturn:
    while True:
        time.sleep(interval_s)
        try:
            put(fetch(client))
        except CommandFailed as failed:
            put(failed)


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Yields a function that returns the next key, or nothing after a short while. Keys are not
    echoed in the meantime."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)

    def key() -> str:
        ready, _, _ = select.select([stream], [], [], _KEY_S)
        if not ready:
            return ""
        # A terminal that is gone reads as an end.
        return os.read(stream, 64).decode(errors="replace") or _QUIT[0]

    try:
        tty.setcbreak(stream)
        yield key
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _no_key() -> str:
    time.sleep(_KEY_S)
    return ""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends the context at SIGTERM and SIGHUP as at Ctrl-C, so that the terminal is restored."""
    before = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGHUP)}
    for which in before:
        signal.signal(which, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
