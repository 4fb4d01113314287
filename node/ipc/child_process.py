"""Child processes of the agent that wait for work on a socket.

A process needs seconds for its imports. So a spare one, with its imports done, is kept of each
kind. Each ends when its socket closes, so that it never outlives the agent.
"""

import asyncio
import logging
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGKILL

from node.hardware import python_command
from serving.processes.process_signal import send_signal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process that reads from the other end of the socket."""

    process: Process
    link: socket.socket

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """Kills the process and waits for its end."""
        send_signal(self.process, SIGKILL)
        self.link.close()
        await self.process.wait()


LINK_BYTES = 1 << 20
"""Buffer size of each end of a link, in each direction; the system may grant less. Tests reduce it
to the default of macOS."""


def linked_sockets() -> tuple[socket.socket, socket.socket]:
    """Returns the two ends of a link, with buffers for long prompts: the default of macOS is 8 KiB,
    and each 8 KiB would cost a round trip."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, LINK_BYTES)
    return ours, theirs


async def spawn(module: str, *arguments: str) -> ChildProcess:
    """Runs the module in a process; its arguments are the number of its socket, then `arguments`.
    Raises `OSError`."""
    ours, theirs = linked_sockets()
    try:
        with theirs:
            number = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                *(*python_command(), "-m", module, str(number), *arguments),
                stdin=DEVNULL,
                pass_fds=(number,),
                # The agent handles a Ctrl-C in the terminal, and stops its processes.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    ours.settimeout(0)
    return ChildProcess(process, ours)


class Spare:
    """Owner of a spare process that runs `module`."""

    def __init__(self, module: str = "", *arguments: str) -> None:
        """Arguments as in `spawn`; without a module no process is kept."""
        self._module = module
        self._arguments = arguments
        self._ready: ChildProcess | None = None
        self._work: asyncio.Task[None] | None = None

    def take(self) -> ChildProcess | None:
        """Returns the process, which the caller then owns; None if there is none."""
        taken, self._ready = self._ready, None
        if taken is not None and not taken.alive:
            taken.link.close()
            return None
        return taken

    def refill(self, after_s: float, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Starts a process after a delay if `is_needed` then returns True, unless there is one or
        one is being started."""
        if self._module and self._ready is None and self._work is None:
            self._work = asyncio.create_task(self._start(after_s, is_needed))

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        ended, self._ready = self._ready, None
        if ended is not None:
            # It ends when its socket closes.
            ended.link.close()
            await ended.process.wait()

    async def _start(self, after_s: float, is_needed: Callable[[], bool]) -> None:
        try:
            await asyncio.sleep(after_s)
            if is_needed():
                self._ready = await spawn(self._module, *self._arguments)
        except OSError as error:
            # The next caller of `spawn` gets the error.
            logger.warning("No process of %s can be started ahead: %s.", self._module, error)
        finally:
            self._work = None
