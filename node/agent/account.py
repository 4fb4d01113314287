"""One request of an agent, on its way to a row and to its account."""

import asyncio
from dataclasses import dataclass

from node.errors import BadRequest, ContextTooLong, EngineFault, ShuttingDown
from node.link import RowRefused, RowStream
from node.openai import TextRequest
from node.protocol.messages import FinishReason
from node.supervisor import EngineHandle
from node.types import Delta, GenerateRequest


@dataclass(frozen=True, slots=True)
class Job:
    """One request on its way through the agent."""

    request: TextRequest
    request_id: str
    origin: str
    arrived_s: float
    """Monotonic."""


@dataclass(slots=True, eq=False)
class Account:
    """What is known of a request before its row's last delta."""

    job: Job
    start: asyncio.Task[tuple[EngineHandle, RowStream]] | None = None
    """On the way to a row that the engine has accepted."""
    handle: EngineHandle | None = None
    row: RowStream | None = None
    """Of `handle`."""


def refusal(
    exc: RowRefused, generate: GenerateRequest, request: TextRequest, handle: EngineHandle
) -> BadRequest:
    """The engine's refusal in the caller's terms."""
    is_prompt = exc.param in ("messages", "prompt")
    if is_prompt and len(generate.tokens) >= handle.info.context_tokens:
        return ContextTooLong(exc.message, param=request.prompt_field)
    return BadRequest(exc.message, param=request.prompt_field if is_prompt else exc.param)


def raise_unless_complete(last: Delta) -> None:
    if last.finish is FinishReason.ERROR:
        raise EngineFault(last.error)
    if last.finish is FinishReason.CANCELLED:
        raise ShuttingDown("The engine ended the request because it stops.")


def shut_down(account: Account) -> None:
    if account.row is not None and account.handle is not None:
        account.handle.link.abandon(account.row.uid, ShuttingDown())
    elif account.start is not None:
        account.start.cancel()


def take_back(start: asyncio.Task[tuple[EngineHandle, RowStream]]) -> None:
    """Takes the request back, however far its start got."""
    if not start.done():
        start.cancel()
    elif not start.cancelled() and start.exception() is None:
        handle, row = start.result()
        if not row.ended:
            handle.link.cancel(row.uid)
