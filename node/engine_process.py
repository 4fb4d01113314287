"""Starting engine processes: for a load, and one ahead of the next load.

A process needs seconds for its imports, whatever model it is to load. So one is kept that has them
behind it and waits for what to load. It holds some 0.2 GB, and no model.
"""

import asyncio
import logging
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass

from node.hardware import python_command

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process that waits for a `Load` on the other end of the socket."""

    process: Process
    link: socket.socket

    @property
    def alive(self) -> bool:
        return self.process.returncode is None


async def spawn(engine: str) -> EngineProcess:
    """Starts a process for engines of that kind. Raises `OSError`."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(*python_command(), "-m", "node.worker", str(theirs.fileno()), engine),
                stdin=DEVNULL,
                pass_fds=(theirs.fileno(),),
                # A Ctrl-C in the terminal is the agent's to handle, which stops its engines.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    ours.settimeout(0)
    return EngineProcess(process, ours)


class Spare:
    """Owner of the process that is kept for the next load; none where `engine` is empty."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._ready: EngineProcess | None = None
        self._work: asyncio.Task[None] | None = None

    def take(self) -> EngineProcess | None:
        """The process, if there is one; it is the caller's then."""
        taken, self._ready = self._ready, None
        if taken is not None and not taken.alive:
            taken.link.close()
            return None
        return taken

    def refill(self, after_s: float, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Starts one after a while, if it is wanted then, unless there is one or one is on its
        way."""
        if self._engine and self._ready is None and self._work is None:
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
                self._ready = await spawn(self._engine)
        except OSError as error:
            # The next load starts one itself, and tells of the reason.
            logger.warning("No engine process can be started ahead of a load: %s.", error)
        finally:
            self._work = None
