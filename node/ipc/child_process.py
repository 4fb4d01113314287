"""Processes of the agent that wait for work on a socket.

A process needs seconds for its imports, whatever it is to do. So one of a kind is kept that has
them behind it. Each ends when its socket does, so that it never outlives the agent.
"""

import asyncio
import contextlib
import logging
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass

from node.hardware import python_command

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process that waits for what comes from the other end of the socket."""

    process: Process
    link: socket.socket

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """Ends it at once, and waits."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.link.close()
        await self.process.wait()


LINK_BYTES = 1 << 20
"""Of each end of a link, each way; the system may give less. Tests take it down to what macOS has
by itself."""


def linked_sockets() -> tuple[socket.socket, socket.socket]:
    """The two ends of a link, with room for long prompts: macOS gives 8 KiB, and each of them would
    be a turn of both sides."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, LINK_BYTES)
    return ours, theirs


async def spawn(module: str, *arguments: str) -> ChildProcess:
    """Runs the module in a process, with the number of its socket and the arguments. Raises
    `OSError`."""
    ours, theirs = linked_sockets()
    try:
        with theirs:
            number = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                *(*python_command(), "-m", module, str(number), *arguments),
                stdin=DEVNULL,
                pass_fds=(number,),
                # A Ctrl-C in the terminal is the agent's to handle, which stops its processes.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    ours.settimeout(0)
    return ChildProcess(process, ours)


class Spare:
    """Owner of a process that is kept for the next one who needs one of its module."""

    def __init__(self, module: str = "", *arguments: str) -> None:
        """As `spawn`; without a module none is kept."""
        self._module = module
        self._arguments = arguments
        self._ready: ChildProcess | None = None
        self._work: asyncio.Task[None] | None = None

    def take(self) -> ChildProcess | None:
        """The process, if there is one; it is the caller's then."""
        taken, self._ready = self._ready, None
        if taken is not None and not taken.alive:
            taken.link.close()
            return None
        return taken

    def refill(self, after_s: float, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Starts one after a while, if it is wanted then, unless there is one or one is on its
        way."""
        if self._module and self._ready is None and self._work is None:
            self._work = asyncio.create_task(self._start(after_s, is_wanted))

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        ended, self._ready = self._ready, None
        if ended is not None:
            # It ends when its socket does.
            ended.link.close()
            await ended.process.wait()

    async def _start(self, after_s: float, is_wanted: Callable[[], bool]) -> None:
        try:
            await asyncio.sleep(after_s)
            if is_wanted():
                self._ready = await spawn(self._module, *self._arguments)
        except OSError as error:
            # Who needs one starts it itself, and tells of the reason.
            logger.warning("No process of %s can be started ahead: %s.", self._module, error)
        finally:
            self._work = None
