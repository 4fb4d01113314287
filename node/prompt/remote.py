"""The prompts of one model, made in a process of their own."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from node.errors import (
    BadRequest,
    ContextTooLong,
    LoadFailure,
    NodeError,
    RendererDied,
    TooManyWaiting,
)
from node.ipc.child_process import ChildProcess
from node.parsing.selection import Formats
from node.prompt.late_chain import LateChain
from node.prompt.process import RenderLimitExceeded, RenderLimits, RenderProcess, RenderProcessDied
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.wire import (
    Command,
    CountPositions,
    Failed,
    Opened,
    OpenTemplate,
    OpenTokenizer,
    PositionCounts,
    Render,
    Rendered,
    RenderRefused,
    RenderResponse,
    unpack,
)
from serving.fair_shares import FairShares

Start = Callable[[], Awaitable[ChildProcess]]
"""Starts a render process. Raises `OSError`."""


class RemoteRenderer:
    """Owns one model's render process, which is started on demand, and again after it has ended.
    Prompts are made one at a time, those of several callers in turn."""

    def __init__(
        self, folder: Path, formats: Formats | None, start: Start, limits: RenderLimits
    ) -> None:
        """`formats`: formats of the model's output; None for those found from template and
        vocabulary."""
        self._folder = folder
        self._wanted = formats
        self._start = start
        self._limits = limits
        self._shares = FairShares(1, TooManyWaiting)
        self._process: RenderProcess | None = None
        self._opening: asyncio.Task[RenderProcess] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._shares.granted_total and self._opening is None

    def begin(self) -> None:
        """Starts the process, unless it runs or is being started."""
        if self._opening is None and not (self._process is not None and self._process.alive):
            self._opening = asyncio.create_task(self._opened())
            self._opening.add_done_callback(self._on_opened)

    async def open(self) -> None:
        """Waits until everything is loaded; a cancelled caller does not end the load. Raises
        `LoadFailure` with a sentence."""
        self.begin()
        if (opening := self._opening) is not None:
            await asyncio.wait({opening})
            opening.result()

    async def render(self, render_request: RenderRequest) -> Prompt:
        """Makes the prompt. Raises `BadRequest`, `ContextTooLong`, `LoadFailure`, `RendererDied`,
        or `TooManyWaiting` if the same caller already has too many prompts waiting."""
        async with self._shares.acquired(render_request.caller, 1):
            process = await self._ready()
            prompt = await self._rendered(process, render_request)
            if render_request.chain is not None:
                prompt = replace(
                    prompt, positions=await self._positions(process, render_request.chain)
                )
            if process.memory_bytes() > self._limits.memory_bytes // 2:
                # The process would not return the memory that a long prompt took.
                await self._end()
            return prompt

    async def close(self) -> None:
        """Ends the process; another one is started on demand."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._end()

    # --- its process -------------------------------------------------------------------------

    async def _ready(self) -> RenderProcess:
        if self._process is not None:
            await self._process.settled()
        await self.open()
        if self._process is None:
            raise RendererDied
        return self._process

    def _on_opened(self, opening: asyncio.Task[RenderProcess]) -> None:
        self._opening = None
        # A failure is raised in `open`, if anybody waits there.
        if not opening.cancelled() and opening.exception() is None:
            self._process = opening.result()

    async def _opened(self) -> RenderProcess:
        await self._end()
        try:
            process = await RenderProcess.connect(await self._start())
        except OSError as exc:
            raise LoadFailure(f"The process that makes prompts cannot be started: {exc}.") from exc
        try:
            await self._load(process)
        except BaseException:
            await process.close()
            raise
        return process

    async def _load(self, process: RenderProcess) -> None:
        name, limits = self._folder.name, self._limits
        tokenizer, template = OpenTokenizer(self._folder), OpenTemplate(self._wanted)
        try:
            response = await process.run(tokenizer, limits.tokenizer_s, limits.memory_bytes)
            self._check_opened(response)
        except RenderLimitExceeded as exc:
            raise LoadFailure(f"The load of the tokenizer of {name} {exc}.") from exc
        except RenderProcessDied as exc:
            raise LoadFailure(f"The load of the tokenizer of {name} ended its process.") from exc
        try:
            response = await process.run(template, limits.template_s, limits.memory_bytes)
            self._check_opened(response)
        except RenderLimitExceeded as exc:
            raise LoadFailure(
                f"The chat template of {name} {exc} for a few short chats: it does not end, or its "
                "text does not."
            ) from exc
        except RenderProcessDied as exc:
            raise LoadFailure(f"The chat template of {name} ended its process.") from exc

    def _check_opened(self, response: RenderResponse) -> None:
        if isinstance(response, Failed):
            raise LoadFailure(response.reason)
        if not isinstance(response, Opened):
            raise RenderProcessDied

    async def _end(self) -> None:
        ended, self._process = self._process, None
        if ended is not None:
            await ended.close()

    # --- one prompt --------------------------------------------------------------------------

    async def _rendered(self, process: RenderProcess, render_request: RenderRequest) -> Prompt:
        request = render_request.request
        try:
            response = await self._run(
                process, Render(request, render_request.context_tokens, render_request.shared)
            )
        except RenderLimitExceeded as exc:
            what = "chat template" if request.messages is not None else "tokenizer"
            raise BadRequest(
                f"The model's {what} {exc} for this prompt.", param=request.prompt_field
            ) from exc
        match response:
            case Rendered():
                return _prompt(response)
            case RenderRefused(message, param, overflow) if overflow is not None:
                raise ContextTooLong(overflow, message, param=param)
            case RenderRefused(message, param):
                raise BadRequest(message, param=param)
        raise _unexpected(response)

    async def _positions(self, process: RenderProcess, late_chain: LateChain) -> "array[int]":
        chain = await late_chain.compute()
        if chain is None:
            return array("I")
        try:
            response = await self._run(process, CountPositions(chain))
        except RenderLimitExceeded as exc:
            raise RendererDied from exc
        if isinstance(response, PositionCounts):
            counts = unpack(response.counts)
            if len(counts) == len(chain):
                return counts
        raise _unexpected(response)

    async def _run(self, process: RenderProcess, command: Command) -> RenderResponse:
        """Sends a command within the limits for one prompt. Raises `RenderLimitExceeded` or
        `RendererDied`."""
        limits = self._limits
        try:
            return await process.run(command, limits.render_s, limits.memory_bytes)
        except RenderProcessDied:
            raise RendererDied from None


def _prompt(response: Rendered) -> Prompt:
    return Prompt(
        tuple(unpack(response.tokens)),
        tuple(unpack(response.boundaries)),
        response.reusable_tokens,
        tuple(unpack(response.dropped_output)),
        response.formats,
        response.tail,
    )


def _unexpected(response: RenderResponse) -> NodeError:
    """Returns the error for a response that does not belong to the command."""
    return NodeError(response.reason) if isinstance(response, Failed) else RendererDied()
