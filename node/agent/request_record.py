"""One request of an agent, on its way to a row and to its account."""

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
from node.protocol.messages import FinishReason
from node.protocol.prefix import Answer, Called, Chain, Said, answered
from node.request import NO_ITEM, TextRequest


@dataclass(slots=True)
class _AnswerSoFar:
    """What an answer has said, without its reasoning."""

    _names: list[str | None] = field(default_factory=list)
    """Of the calls; None for text."""
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

    def said(self) -> list[Said | Called]:
        """In its order."""
        return [
            Said("".join(pieces)) if name is None else Called(name, "".join(pieces))
            for name, pieces in zip(self._names, self._pieces, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Sender:
    """What a router says of whoever asks; all empty without one."""

    origin: str = ""
    """As `HEADER_ORIGIN`."""
    salt: str = ""
    """What parts it from the requests of others; of the chain, too."""
    proof: str = ""
    """As `HEADER_PROOF`."""


NOBODY = Sender()


@dataclass(frozen=True, slots=True)
class Job:
    """One request on its way through the agent."""

    request: TextRequest
    path: str
    request_id: str
    sender: Sender
    arrived_s: float
    """Monotonic."""
    arrived_unix_s: float
    late_chain: LateChain | None = None
    """Of its body."""
    _answer: _AnswerSoFar = field(default_factory=_AnswerSoFar)

    @property
    def origin(self) -> str:
        return self.sender.origin

    @property
    def chain(self) -> Chain | None:
        """None where its body has none, and before its prompt is made."""
        return None if self.late_chain is None else self.late_chain.chain

    @property
    def _is_followed(self) -> bool:
        """Whether later prompts may go on from its answer."""
        return self.request.choices == 1 and not self.request.continue_final

    def take(self, parts: Sequence[Part]) -> None:
        """What the answer says next."""
        if self.chain is not None and self._is_followed:
            self._answer.add(parts)

    def answered(self) -> Chain | None:
        """The chain with the answer behind it; None where later prompts do not go on from it."""
        if self.chain is None or not self._is_followed:
            return None
        return answered(self.chain, Answer(self.path, self._answer.said()))


@dataclass(slots=True, eq=False)
class Account:
    """What is known of a request before its row's last delta."""

    job: Job
    start: asyncio.Task[tuple[EngineHandle, RowStream]] | None = None
    """On the way to a row that the engine has accepted."""
    handle: EngineHandle | None = None
    row: RowStream | None = None
    """Of `handle`."""
    digest: PrefixDigest | None = None
    """Of the engine, where it awaits what the request stores."""
    reusable_tokens: int | None = None
    """Of the prompt; as in `GenerateRequest`."""
    begun: bool = False
    """Whether its first delta has been taken."""
    told: bool = False
    """Whether its last delta has been taken."""
    left: bool = False
    """Whether nobody takes its deltas any more."""
    failure: NodeError | None = None
    """Why the agent has ended the request before it had a row: whoever brings it there looks."""


def lasting_tokens(request: TextRequest, prompt: Prompt, tokens: Sequence[int]) -> int | None:
    """How much of the prompt later ones begin with, as `reusable_tokens` of `GenerateRequest`;
    `tokens` are those up to each position of its chain. A message that the next turn leaves out
    ends it."""
    if not any(each.source == NO_ITEM for each in request.messages or ()):
        return prompt.reusable_tokens
    lasting = tokens[-1] if tokens else 0
    return lasting if prompt.reusable_tokens is None else min(lasting, prompt.reusable_tokens)


def account_view(account: Account, now_s: float) -> dict[str, Any]:
    """What `GET /v1/requests` tells of an open request; JSON types only."""
    job, row = account.job, account.row
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
    """The engine's refusal in the caller's terms."""
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


def shut_down(account: Account, failure: NodeError) -> None:
    """Ends the request with `failure`, in whatever phase it is."""
    if account.row is not None and account.handle is not None:
        account.handle.link.abandon(account.row.uid, failure)
        return
    account.failure = failure
    if account.start is not None:
        account.start.cancel()


def take_back(start: asyncio.Task[tuple[EngineHandle, RowStream]]) -> None:
    """Takes the request back, however far its start got."""
    if not start.done():
        start.cancel()
    elif not start.cancelled() and start.exception() is None:
        handle, row = start.result()
        if not row.ended:
            handle.link.cancel(row.uid)
