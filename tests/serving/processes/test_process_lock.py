"""One process for a folder, by real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.processes.process_lock import LockTaken, ProcessLock

HOLD = """
import pathlib, sys
from serving.processes.process_lock import ProcessLock
lock = ProcessLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_process_that_holds_it_is_named_until_it_ends_however_it_does(tmp_path: Path) -> None:
    place = tmp_path / "agent"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LockTaken) as taken:
            ProcessLock(place)
        assert taken.value.pid == other.pid
        other.kill()
    ProcessLock(place).release()


def test_it_is_given_back(tmp_path: Path) -> None:
    first = ProcessLock(tmp_path / "agent")
    assert (tmp_path / "agent.pid").read_text() == str(os.getpid())
    first.release()
    assert not (tmp_path / "agent.pid").exists()
    ProcessLock(tmp_path / "agent").release()


@pytest.mark.parametrize("text", ["", "none", "-1", "0", "9" * 30, "99999999"])
def test_a_holder_that_cannot_be_identified_is_none(tmp_path: Path, text: str) -> None:
    lock = ProcessLock(tmp_path / "agent")
    (tmp_path / "agent.pid").write_text(text)
    with pytest.raises(LockTaken) as taken:
        ProcessLock(tmp_path / "agent")
    assert taken.value.pid is None
    lock.release()


def test_a_place_that_cannot_be_used_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory|File exists"):
        ProcessLock(tmp_path / "file" / "agent")
