"""A `caffeinate` that writes down how it was called and how it ended."""

import asyncio
import os
from pathlib import Path

import pytest

WAIT_S = 20.0
_SCRIPT = """#!/bin/sh
echo "began $*" >> "{log}"
trap 'echo "terminated" >> "{log}"; exit 0' TERM
while kill -0 "$3"; do sleep 0.02; done
echo "ended with its process" >> "{log}"
"""


class Caffeinate:
    """The command, and its own notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "log"
        self._log.write_text("")
        command = folder / "caffeinate"
        command.write_text(_SCRIPT.format(log=self._log))
        command.chmod(0o755)

    @property
    def notes(self) -> list[str]:
        return self._log.read_text().splitlines()

    async def until(self, *notes: str) -> None:
        """Waits for exactly these notes."""
        async with asyncio.timeout(WAIT_S):
            while self.notes != [*notes]:
                await asyncio.sleep(0.01)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Caffeinate:
    """The first one on the path from now on."""
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Caffeinate(folder)


def begun(pid: int | None = None) -> str:
    """Returns the command's first note, for this process unless another is named."""
    return f"began -i -w {os.getpid() if pid is None else pid}"


TERMINATED = "terminated"
LEFT = "ended with its process"
