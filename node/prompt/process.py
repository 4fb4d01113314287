"""The agent's end of the socket to one render process, and what that may take of time and memory.

macOS enforces no limit on the memory of a process. So the agent looks at it while there is
something to make, and ends a process that goes too far.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import msgspec

from node.hardware import process_bytes
from node.ipc.child_process import ChildProcess
from node.prompt.wire import (
    LENGTH,
    MOST_ANSWER_BYTES,
    Answer,
    Command,
    command_frame,
    decode_answer,
)
from serving.units import gib

LOOK_S = 0.05
"""How often it is looked at what a process takes that has not answered."""
LEFT_S = 1.0
"""How long it may go on with what nobody waits for any more."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What a render process may take. Real tokenisers and templates take a hundredth of it, but
    for the rare tokeniser that has to be converted first."""

    tokeniser_s: float = 120.0
    """For the load of a tokeniser, and the imports of a process that has not waited."""
    template_s: float = 20.0
    """For some hundred short chats with a new template."""
    render_s: float = 30.0
    """For one prompt."""
    memory_bytes: int = 2 * 1024**3


class TooMuch(Exception):
    """It took more than it may, and has been ended; how much, as in `takes more than 20 s`."""


class RenderProcessDied(Exception):
    """The process ended by itself, or said what none of its kind says."""


class RenderProcess:
    """One process, which does one thing at a time. All methods belong to one event loop."""

    def __init__(
        self, child: ChildProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Use `connect`."""
        self._child = child
        self._reader = reader
        self._writer = writer
        self._leftover: asyncio.Task[None] | None = None
        """Waits for the end of what nobody waits for any more."""
        self._ended = False

    @classmethod
    async def connect(cls, child: ChildProcess) -> "RenderProcess":
        """Takes the process over. Raises `OSError`, and then has ended it."""
        try:
            reader, writer = await asyncio.open_connection(sock=child.link)
        except BaseException:
            await child.kill()
            raise
        return cls(child, reader, writer)

    async def settled(self) -> None:
        """Waits for the end of what nobody waits for any more, which may be its own."""
        if self._leftover is not None:
            await asyncio.wait({self._leftover})

    @property
    def alive(self) -> bool:
        return not self._ended and self._child.alive and not self._reader.at_eof()

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def memory_bytes(self) -> int:
        return process_bytes(self.pid)

    async def ask(self, command: Command, limit_s: float, memory_bytes: int) -> Answer:
        """Its answer. Where the caller leaves, it goes on for a moment, and then is ended. Raises
        `TooMuch` or `RenderProcessDied`."""
        await self.settled()
        if not self.alive:
            raise RenderProcessDied
        self._writer.write(command_frame(command))
        answer = asyncio.create_task(self._read())
        try:
            return await self._within(answer, limit_s, memory_bytes)
        except asyncio.CancelledError:
            self._leftover = asyncio.create_task(self._let_end(answer, memory_bytes))
            raise

    async def close(self) -> None:
        """Ends the process."""
        self._end()
        await self.settled()
        await self._child.process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _within(
        self, answer: asyncio.Task[Answer], limit_s: float, memory_bytes: int
    ) -> Answer:
        late_s = time.monotonic() + limit_s
        while not (await asyncio.wait({answer}, timeout=LOOK_S))[0]:
            if time.monotonic() > late_s:
                reason = f"takes more than {limit_s:g} s"
            elif self.memory_bytes() > memory_bytes:
                reason = f"takes more than {gib(memory_bytes)} of memory"
            else:
                continue
            self._end()
            with contextlib.suppress(RenderProcessDied):
                await answer
            raise TooMuch(reason)
        return answer.result()

    async def _let_end(self, answer: asyncio.Task[Answer], memory_bytes: int) -> None:
        with contextlib.suppress(TooMuch, RenderProcessDied):
            await self._within(answer, LEFT_S, memory_bytes)

    async def _read(self) -> Answer:
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length <= MOST_ANSWER_BYTES:
                return decode_answer(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            pass
        self._end()
        raise RenderProcessDied

    def _end(self) -> None:
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            self._child.process.kill()
        self._writer.close()
