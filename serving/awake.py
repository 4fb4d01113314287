"""Keeps a Mac from going to sleep while there is work, with `caffeinate` of macOS.

A Mac sleeps when nobody touches it; neither the network nor the GPU keeps it awake. Where there is
no such command, as on Linux, nothing is done.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator

from serving.stay_awake import StayAwake

COMMAND = "caffeinate"
RELEASE_S = 60.0
"""How long after its last work the Mac is still kept awake: the next request of a session."""

logger = logging.getLogger(__name__)


def refusal(mode: StayAwake) -> str | None:
    """Why this machine cannot be kept awake so, as a sentence; None if it can, or need not."""
    if mode is not StayAwake.ALWAYS or shutil.which(COMMAND) is not None:
        return None
    return f"stay_awake is always, but there is no {COMMAND}, the command that keeps a Mac awake."


class Awake:
    """Owner of the process that keeps the Mac awake. All calls come from one event loop."""

    def __init__(self, mode: StayAwake) -> None:
        self._command = None if mode is StayAwake.NEVER else shutil.which(COMMAND)
        self._always = mode is StayAwake.ALWAYS
        self._work = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._always:
            self.begin()

    def begin(self) -> None:
        """A piece of work begins."""
        self._work += 1
        if self._command is None or self._closing:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work == 1:
            self._want()

    def end(self) -> None:
        """A piece of work has ended."""
        self._work -= 1
        if self._work == 0 and self._command is not None and not self._closing:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RELEASE_S, self._let_go)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For one piece of work."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._let_go()
        if self._task is not None:
            self._wanted.set()
            await self._task

    def _want(self) -> None:
        self._unwanted.clear()
        self._wanted.set()
        if self._task is None and self._command is not None:
            self._task = asyncio.create_task(self._run(self._command))

    def _let_go(self) -> None:
        self._timer = None
        self._wanted.clear()
        self._unwanted.set()

    async def _run(self, command: str) -> None:
        while not self._closing:
            await self._wanted.wait()
            if not self._closing:
                await self._hold(command)

    async def _hold(self, command: str) -> None:
        """Keeps the Mac awake until nothing wants it any more."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(command, *arguments()), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            )
        except OSError as error:
            logger.warning("This machine may sleep while it works: %s.", error)
            await self._unwanted.wait()
            return
        unwanted = asyncio.create_task(self._unwanted.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({unwanted, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            logger.warning(
                "This machine may sleep while it works: %s ended with code %s.",
                *(COMMAND, process.returncode),
            )
        else:
            process.terminate()
            await ended
        await unwanted


def arguments() -> tuple[str, ...]:
    """What `caffeinate` is to do: no idle sleep as long as this process is there, even where it is
    killed. The display may go dark: the GPU's watchdog is stricter while it is lit."""
    return ("-i", "-w", str(os.getpid()))


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """For a command that works by itself, without an event loop."""
    command = shutil.which(COMMAND)
    if command is None:
        yield
        return
    quiet = subprocess.DEVNULL
    with subprocess.Popen([command, *arguments()], stdin=quiet, stdout=quiet, stderr=quiet) as held:
        try:
            yield
        finally:
            held.terminate()
