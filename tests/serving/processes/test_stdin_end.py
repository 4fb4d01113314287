"""The end of standard input."""

import os
import subprocess
import sys
import threading

import pytest

from serving.errors import CannotStart
from serving.processes.stdin_end import open_stdin, watch_end

WAIT_S = 20
HANGS = """
import threading
from serving.processes.stdin_end import open_stdin, watch_end
watch_end(open_stdin(), lambda: None, 0.01)
threading.Event().wait()
"""


def test_the_end_of_the_file_stops_the_server() -> None:
    reader, writer = os.pipe()
    stopped = threading.Event()
    thread = watch_end(reader, stopped.set)
    os.write(writer, b"x")
    assert not stopped.is_set()
    os.close(writer)
    assert stopped.wait(WAIT_S)
    thread.join(WAIT_S)
    os.close(reader)


def test_a_server_that_hangs_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], input="", text=True, timeout=WAIT_S)
    assert done.returncode == 1


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CannotStart, match="is closed"):
        open_stdin()
