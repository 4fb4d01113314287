"""Keeps a Mac from going to sleep while there is work, by macOS's command `caffeinate`.

A Mac sleeps when nobody uses it; neither the network nor the GPU keeps it awake. On a system
without the command, such as Linux, nothing is done.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator
from signal import SIGTERM

from serving.errors import CannotStart
from serving.processes.process_signal import send_signal
from serving.stay_awake import StayAwake

COMMAND = "caffeinate"
RELEASE_S = 60.0
"""Seconds after the last work until the Mac may sleep again: a session's next request may
follow."""

logger = logging.getLogger(__name__)


def need_command(mode: StayAwake) -> None:
    """Raises `CannotStart` if this machine cannot be kept awake in this mode, although it must."""
    if mode is StayAwake.ALWAYS and shutil.which(COMMAND) is None:
        raise CannotStart(
            f"stay_awake is always, but there is no {COMMAND}, the command that keeps a Mac awake."
        )


class Awake:
    """Owner of the process that keeps the Mac awake. All calls come from one event loop."""

    def __init__(self, mode: StayAwake) -> None:
        self._command = None if mode is StayAwake.NEVER else shutil.which(COMMAND)
        self._always = mode is StayAwake.ALWAYS
        self._work = 0
        self._timer: asyncio.TimerHandle | None = None
        self._needed = asyncio.Event()
        self._unneeded = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._always:
            self.begin()

    def set_mode(self, mode: StayAwake) -> None:
        """Changes the mode, from now on and for the work that goes on."""
        always = mode is StayAwake.ALWAYS
        self._work += always - self._always
        self._always = always
        self._command = None if mode is StayAwake.NEVER else shutil.which(COMMAND)
        if self._timer is not None:
            self._timer.cancel()
        if self._work and self._command is not None:
            self._timer = None
            self._keep_awake()
        else:
            self._release()

    def begin(self) -> None:
        """Starts a piece of work."""
        self._work += 1
        if self._command is None or self._closing:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work == 1:
            self._keep_awake()

    def end(self) -> None:
        """Ends a piece of work."""
        self._work -= 1
        if self._work == 0 and self._command is not None and not self._closing:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RELEASE_S, self._release)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Keeps the Mac awake during one piece of work."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        if self._task is not None:
            self._needed.set()
            await self._task

    def _keep_awake(self) -> None:
        self._unneeded.clear()
        self._needed.set()
        if self._task is None and self._command is not None:
            self._task = asyncio.create_task(self._run(self._command))

    def _release(self) -> None:
        self._timer = None
        self._needed.clear()
        self._unneeded.set()

    async def _run(self, command: str) -> None:
        while not self._closing:
            await self._needed.wait()
            if not self._closing:
                await self._keep_until_unneeded(command)

    async def _keep_until_unneeded(self, command: str) -> None:
        """Keeps the Mac awake until `_unneeded` is set."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(command, *arguments()), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            )
        except OSError as error:
            logger.warning("This machine may sleep while it works: %s.", error)
            await self._unneeded.wait()
            return
        unneeded = asyncio.create_task(self._unneeded.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({unneeded, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            logger.warning(
                "This machine may sleep while it works: %s ended with code %s.",
                *(COMMAND, process.returncode),
            )
        else:
            send_signal(process, SIGTERM)
            await ended
        await unneeded


def arguments() -> tuple[str, ...]:
    """Arguments of `caffeinate`: no idle sleep as long as this process runs, even if it is killed.
    The display may sleep: the GPU's watchdog is stricter while it is on."""
    return ("-i", "-w", str(os.getpid()))


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """Keeps the Mac awake during a command that has no event loop."""
    command = shutil.which(COMMAND)
    if command is None:
        yield
        return
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [command, *arguments()], stdin=quiet, stdout=quiet, stderr=quiet
    ) as process:
        try:
            yield
        finally:
            process.terminate()
