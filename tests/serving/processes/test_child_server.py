"""Servers that are children of a command."""

import sys
import time

import pytest

from serving.processes.child_server import ChildServer

LISTENS = "print('it is listening on http://127.0.0.1:1', flush=True)\n"


def child(program: str, lines: list[str]) -> ChildServer:
    return ChildServer("it", [sys.executable, "-c", program], lines.append, loud=False)


def test_it_listens_and_ends_with_its_input() -> None:
    lines: list[str] = []
    started = child(LISTENS + "import sys\nsys.stdin.read()\nprint('end')", lines)
    assert started.until_listening(20) == "http://127.0.0.1:1"
    started.stop(time.monotonic() + 20)
    assert started.ended.is_set()


def test_one_that_ends_before_leaves_its_last_words() -> None:
    started = child("import sys; sys.exit('The port is taken.')", [])
    assert started.until_listening(20) is None
    assert started.last_words() == ["The port is taken."]
    started.stop(time.monotonic() + 20)


def test_one_that_takes_too_long_is_not_waited_for() -> None:
    started = child("import sys\nsys.stdin.read()", [])
    with pytest.raises(TimeoutError, match="it has not started within 0 s"):
        started.until_listening(0.01)
    started.stop(time.monotonic() + 20)
