"""One request of an agent, and its state up to its usage record."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from node.engines.row_stream import RowStream
from node.engines.slot import EngineHandle
from node.errors import (
    BadRequest,
    BrokenCall,
    ContextTooLong,
    EngineFault,
    NodeError,
    RowRefused,
    ShuttingDown,
)
from node.ipc.messages import Delta, Part, PartKind
from node.prefixes.digest import PrefixDigest
from node.prompt.late_chain import LateChain
from node.prompt.prompt import Prompt
from node.protocol.chain.prefix import (
    Chain,
    OutputCall,
    OutputText,
    ResponseOutput,
    chain_with_output,
)
from node.protocol.messages import FinishReason
from node.request import NO_ITEM, TextRequest


@dataclass(slots=True)
class _OutputSoFar:
    """The content and calls of a response so far, without its reasoning."""

    _names: list[str | None] = field(default_factory=list)
    """Names of the calls; None for text."""
    _pieces: list[list[str]] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.kind is PartKind.REASONING:
                continue
            if part.kind is PartKind.TOOL_START:
                self._begin(part.name)
            elif part.kind is PartKind.CONTENT and (not self._names or self._names[-1] is not None):
                self._begin(None)
            self._pieces[-1].append(part.text)

    def _begin(self, name: str | None) -> None:
        self._names.append(name)
        self._pieces.append([])

    def parts(self) -> list[OutputText | OutputCall]:
        """The content and calls in their order."""
        return [
            OutputText("".join(pieces)) if name is None else OutputCall(name, "".join(pieces))
            for name, pieces in zip(self._names, self._pieces, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Sender:
    """The router's information about the client; all fields are empty for a request without a
    router."""

    origin: str = ""
    """The value of `HEADER_ORIGIN`."""
    salt: str = ""
    """The client's salt, which separates its prefixes from those of other clients, also in the
    chain."""
    proof: str = ""
    """The value of `HEADER_PROOF`."""
    trace: str = ""
    """Header lines of the request's trace (`serving.tracing.context`); the only field that a
    client without a router may set."""


NO_SENDER = Sender()


@dataclass(frozen=True, slots=True)
class Job:
    """One request on its way through the agent."""

    request: TextRequest
    path: str
    request_id: str
    sender: Sender
    arrived_s: float
    """Monotonic time."""
    arrived_unix_s: float
    late_chain: LateChain | None = None
    """Chain of its body, once its prompt is made."""
    _output: _OutputSoFar = field(default_factory=_OutputSoFar)

    @property
    def origin(self) -> str:
        return self.sender.origin

    @property
    def chain(self) -> Chain | None:
        """The request's chain; None if its body has none, and before its prompt is made."""
        return None if self.late_chain is None else self.late_chain.chain

    @property
    def _is_followed(self) -> bool:
        """True if later prompts may continue from its response."""
        return self.request.choices == 1 and not self.request.continue_final

    def record(self, parts: Sequence[Part]) -> None:
        """Records the next parts of the response."""
        if self.chain is not None and self._is_followed:
            self._output.add(parts)

    def chain_with_output(self) -> Chain | None:
        """The chain extended by the response; None if later prompts do not continue from it."""
        if self.chain is None or not self._is_followed:
            return None
        return chain_with_output(self.chain, ResponseOutput(self.path, self._output.parts()))


@dataclass(slots=True, eq=False)
class OpenRequest:
    """The state of a request up to its row's last delta."""

    job: Job
    start: asyncio.Task[tuple[EngineHandle, RowStream]] | None = None
    """The task that brings it to a row which the engine has accepted."""
    handle: EngineHandle | None = None
    row: RowStream | None = None
    """Row of `handle`."""
    digest: PrefixDigest | None = None
    """Digest of the engine, if it expects prefixes of this request."""
    reusable_tokens: int | None = None
    """Prompt tokens that later prompts share, as in `GenerateRequest`."""
    begun: bool = False
    """True once its first delta has been passed on."""
    is_complete: bool = False
    """True once its last delta has been passed on."""
    is_abandoned: bool = False
    """True once nobody reads its deltas any more."""
    failure: NodeError | None = None
    """The error with which the agent has ended the request before it had a row; the task that
    starts it raises it."""


def lasting_tokens(request: TextRequest, prompt: Prompt, tokens: Sequence[int]) -> int | None:
    """Number of the prompt's tokens that later prompts share, as in
    `GenerateRequest.reusable_tokens`. `tokens`: for each position of its chain, the tokens up to
    there. A message that the next turn leaves out ends the shared part."""
    if not any(each.source == NO_ITEM for each in request.messages or ()):
        return prompt.reusable_tokens
    lasting = tokens[-1] if tokens else 0
    return lasting if prompt.reusable_tokens is None else min(lasting, prompt.reusable_tokens)


def open_request_body(open_request: OpenRequest, now_s: float) -> dict[str, Any]:
    """An open request in `GET /v1/requests`; JSON types only."""
    job, row = open_request.job, open_request.row
    accepted = None if row is None else row.accepted
    progress = None if row is None else row.progress
    state = "waiting"
    if row is not None and accepted is not None:
        state = "generating" if row.token_count else "prefilling"
    return {
        "request_id": job.request_id,
        "object": "request",
        "model": job.request.model,
        "path": job.path,
        "state": state,
        "stream": job.request.stream,
        "arrived_unix_s": job.arrived_unix_s,
        "age_s": round(now_s - job.arrived_s, 3),
        "prompt_tokens": None if accepted is None else accepted.prompt_tokens,
        "cached_tokens": None if accepted is None else accepted.cached_tokens,
        "prefilled_tokens": None if progress is None else progress.done_tokens,
        "completion_tokens": 0 if row is None else row.token_count,
    }


def refusal(exc: RowRefused, request: TextRequest) -> BadRequest:
    """The engine's refusal in the terms of the client's request."""
    is_prompt = exc.param in ("messages", "prompt")
    param = request.prompt_field if is_prompt else exc.param
    if exc.overflow is not None:
        return ContextTooLong(exc.overflow, exc.message, param=param)
    return BadRequest(exc.message, param=param)


def raise_unless_complete(last: Delta) -> None:
    if last.finish is FinishReason.ERROR:
        raise EngineFault(last.error)
    if last.finish is FinishReason.REFUSED:
        raise BadRequest(last.error or "")
    if last.finish is FinishReason.CANCELLED:
        raise ShuttingDown("The engine ended the request because it stops.")
    if last.error is not None:
        raise BrokenCall(last.error)


def shut_down(open_request: OpenRequest, failure: NodeError) -> None:
    """Ends the request with `failure`, in whatever phase it is."""
    if open_request.row is not None and open_request.handle is not None:
        open_request.handle.link.abandon(open_request.row.uid, failure)
        return
    open_request.failure = failure
    if open_request.start is not None:
        open_request.start.cancel()


def cancel_start(start: asyncio.Task[tuple[EngineHandle, RowStream]]) -> None:
    """Cancels the request in the engine, however far its start got."""
    if not start.done():
        start.cancel()
    elif not start.cancelled() and start.exception() is None:
        handle, row = start.result()
        if not row.ended:
            handle.link.cancel(row.uid)
