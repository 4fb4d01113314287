"""A command, run beside an agent in the same test."""

import asyncio
from dataclasses import dataclass

import pytest

from node.cli import main


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str


async def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """The command's end; the event loop goes on meanwhile."""

    def run() -> int:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert isinstance(ended.value.code, int)
        return ended.value.code

    code = await asyncio.to_thread(run)
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err)
