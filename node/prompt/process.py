"""The agent's end of the socket to one render process, and the process's limits of time and memory.

macOS does not enforce a limit on a process's memory. So the agent polls it while a command runs,
and ends a process that exceeds its limit.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from signal import SIGKILL

import msgspec

from node.hardware import process_bytes
from node.ipc.child_process import ChildProcess
from node.prompt.wire import (
    LENGTH,
    MAX_RESPONSE_BYTES,
    Command,
    RenderResponse,
    command_frame,
    decode_response,
)
from serving.processes.process_signal import send_signal
from serving.units import gib

POLL_INTERVAL_S = 0.05
"""Seconds between two polls of the memory of a process that has not responded."""
ABANDONED_S = 1.0
"""Seconds that a process may continue with a command whose caller has gone."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of a render process. Real tokenizers and templates need a hundredth of them, except
    for a rare tokenizer that has to be converted first."""

    tokenizer_s: float = 120.0
    """Seconds for loading a tokenizer, and for the imports of a process that was not started
    ahead."""
    template_s: float = 20.0
    """Seconds for some hundred short chats with a new template."""
    render_s: float = 30.0
    """Seconds for one prompt."""
    memory_bytes: int = 2 * 1024**3


class RenderLimitExceeded(Exception):
    """The process exceeded a limit and has been ended. The message completes a sentence, as in
    `takes more than 20 s`."""


class RenderProcessDied(Exception):
    """The process ended by itself, or sent something that is not a response."""


class RenderProcess:
    """One render process, which runs one command at a time. All methods belong to one event
    loop."""

    def __init__(
        self, child: ChildProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Use `connect`."""
        self._child = child
        self._reader = reader
        self._writer = writer
        self._leftover: asyncio.Task[None] | None = None
        """Waits for the end of a command whose caller has gone."""
        self._ended = False

    @classmethod
    async def connect(cls, child: ChildProcess) -> "RenderProcess":
        """Takes ownership of the process. Raises `OSError`, after it has ended the process."""
        try:
            reader, writer = await asyncio.open_connection(sock=child.link)
        except BaseException:
            await child.kill()
            raise
        return cls(child, reader, writer)

    async def settled(self) -> None:
        """Waits for the end of a command whose caller has gone, which may end the process too."""
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

    async def run(self, command: Command, limit_s: float, memory_bytes: int) -> RenderResponse:
        """Sends a command and returns its response. If the caller is cancelled, the command goes on
        for a moment, after which the process is ended. Raises `RenderLimitExceeded` or
        `RenderProcessDied`."""
        await self.settled()
        if not self.alive:
            raise RenderProcessDied
        self._writer.write(command_frame(command))
        response = asyncio.create_task(self._read())
        try:
            return await self._within(response, limit_s, memory_bytes)
        except asyncio.CancelledError:
            self._leftover = asyncio.create_task(self._finish_abandoned(response, memory_bytes))
            raise

    async def close(self) -> None:
        """Ends the process."""
        self._end()
        await self.settled()
        await self._child.process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _within(
        self, response: asyncio.Task[RenderResponse], limit_s: float, memory_bytes: int
    ) -> RenderResponse:
        late_s = time.monotonic() + limit_s
        while not (await asyncio.wait({response}, timeout=POLL_INTERVAL_S))[0]:
            if time.monotonic() > late_s:
                reason = f"takes more than {limit_s:g} s"
            elif self.memory_bytes() > memory_bytes:
                reason = f"takes more than {gib(memory_bytes)} of memory"
            else:
                continue
            self._end()
            with contextlib.suppress(RenderProcessDied):
                await response
            raise RenderLimitExceeded(reason)
        return response.result()

    async def _finish_abandoned(
        self, response: asyncio.Task[RenderResponse], memory_bytes: int
    ) -> None:
        with contextlib.suppress(RenderLimitExceeded, RenderProcessDied):
            await self._within(response, ABANDONED_S, memory_bytes)

    async def _read(self) -> RenderResponse:
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length <= MAX_RESPONSE_BYTES:
                return decode_response(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            pass
        self._end()
        raise RenderProcessDied

    def _end(self) -> None:
        self._ended = True
        send_signal(self._child.process, SIGKILL)
        self._writer.close()
