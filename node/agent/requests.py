"""The requests of one agent. Each is an `OpenRequest` from its arrival to its end, however it ends.

Every request for a known model ends in exactly one `Finished`.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from node.agent.batch import Batch
from node.agent.events import EventHub
from node.agent.open_request import (
    NO_SENDER,
    Job,
    OpenRequest,
    Sender,
    cancel_start,
    lasting_tokens,
    open_request_body,
    raise_unless_complete,
    refusal,
    shut_down,
)
from node.agent.prefixes import PrefixFeed
from node.agent.warming import Warming
from node.engines.lease import Lease
from node.engines.row_stream import RowStream
from node.engines.slot import EngineHandle
from node.engines.supervisor import Supervisor
from node.errors import (
    ContextTooLong,
    NodeError,
    RequestCancelled,
    RowRefused,
    ShuttingDown,
    UnknownModel,
    UnknownRequest,
)
from node.ipc.generate import OutputFormat
from node.ipc.messages import Delta, PartKind, RowUsage
from node.models.store import ModelEntry
from node.prompt.late_chain import LateChain
from node.prompt.length import may_overflow
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.renderers import Renderers
from node.prompt.submission import generate_request
from node.protocol.messages import Began, Finished, FinishReason
from node.request import TextRequest

END_S = 1.0
"""Seconds that a cancelled request may take to end."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOTHING = RowUsage(0, 0, 0, 0.0, 0.0, 0.0)


class CallSettings(NamedTuple):
    """The tool call settings of responses."""

    repeated: bool = False
    """Value for `OutputFormat.repeated_calls`."""
    streamed: bool = True
    """Value for `OutputFormat.streams_calls`. It also applies to a response that is not streamed,
    since both have the same content."""

    def apply(self, output: OutputFormat | None) -> OutputFormat | None:
        if output is None:
            return None
        return msgspec.structs.replace(
            output, repeated_calls=self.repeated, streams_calls=self.streamed
        )


class Requests:
    """Runs all requests of the agent, from arrival to usage record."""

    def __init__(
        self,
        supervisor: Supervisor,
        renderers: Renderers,
        warming: Warming,
        hub: EventHub,
        prefixes: PrefixFeed,
        calls: CallSettings,
    ) -> None:
        self._supervisor = supervisor
        self._renderers = renderers
        self._warming = warming
        self._hub = hub
        self._prefixes = prefixes
        self._calls = calls
        self._open_requests: dict[str, OpenRequest] = {}
        self._awaited: set[str] = set()
        """Ids of requests that a digest knows, which may outlive their `OpenRequest`."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._grace_ended = asyncio.Event()
        self._closed = False
        self._ended = False

    # --- lifecycle ---------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Accepts no more requests, and waits until none is open. Those still open after `grace_s`,
        or after `end_grace`, end with `ShuttingDown`."""
        self._closed = True
        waits = {asyncio.create_task(event.wait()) for event in (self._idle, self._grace_ended)}
        await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        self._ended = True
        for open_request in tuple(self._open_requests.values()):
            shut_down(open_request, ShuttingDown())
        # A request without a row ends in its own task, unless its client keeps that from running.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), END_S)

    def end_grace(self) -> None:
        """Ends the grace period of `drain` now."""
        self._grace_ended.set()

    def close(self) -> None:
        """Accepts no more requests."""
        self._closed = True

    # --- one request -------------------------------------------------------------------------

    def job(
        self,
        request: TextRequest,
        path: str,
        requested_id: str,
        sender: Sender = NO_SENDER,
        chain: LateChain | None = None,
    ) -> Job:
        """The request as a job, under the client's id `requested_id` if that is valid and not in
        use."""
        request_id = requested_id if _REQUEST_ID.fullmatch(requested_id) else secrets.token_hex(12)
        if request_id in self._open_requests or request_id in self._awaited:
            request_id = distinct_id(request_id)
        return Job(request, path, request_id, sender, time.monotonic(), time.time(), chain)

    def open(self, origin: str) -> list[dict[str, Any]]:
        """The open requests that came from `origin`, the oldest first; all for an empty one."""
        now_s = time.monotonic()
        return [
            open_request_body(open_request, now_s)
            for open_request in self._open_requests.values()
            if origin in ("", open_request.job.origin)
        ]

    def cancel(self, request_id: str, origin: str) -> None:
        """Ends an open request with `RequestCancelled`. Raises `UnknownRequest`, also if the
        request came from another origin than a given `origin`."""
        open_request = self._open_requests.get(request_id)
        if open_request is None or origin not in ("", open_request.job.origin):
            raise UnknownRequest
        shut_down(open_request, RequestCancelled())

    async def run(self, job: Job, tick_s: float) -> AsyncGenerator[Batch, None]:
        """Yields the engine's acceptance of the request, then its deltas, all that wait at a time.
        After each `tick_s` without any, from the start on, it yields an empty batch, or the
        progress of the prefill. Closing the generator early cancels the request in any phase.

        Raises a `NodeError`, before the first delta or in place of the last.
        """
        open_request = OpenRequest(job)
        self._open_requests[job.request_id] = open_request
        self._idle.clear()
        reason: FinishReason | None = FinishReason.ERROR
        usage = _NOTHING
        try:
            if self._closed:
                raise ShuttingDown
            entry = await self._supervisor.find(job.request.model)
            if open_request.failure is not None:
                raise open_request.failure
            async with contextlib.aclosing(self._deltas(open_request, entry, tick_s)) as batches:
                async for batch in batches:
                    yield batch
        except NodeError as exc:
            reason, usage = _reason_of(exc), _usage_of(exc)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            reason = FinishReason.CANCELLED
            raise
        finally:
            if open_request.row is None:
                self._finish(open_request, usage, reason)

    async def _deltas(
        self, open_request: OpenRequest, entry: ModelEntry, tick_s: float
    ) -> AsyncGenerator[Batch, None]:
        with self._supervisor.serving(entry) as lease:
            if self._ended:
                raise ShuttingDown
            start = open_request.start = asyncio.create_task(
                self._start(open_request, lease, entry)
            )
            try:
                while not start.done():
                    await asyncio.wait({start}, timeout=tick_s)
                    if not start.done():
                        yield lease.awaited() or ()
                if start.cancelled():
                    raise open_request.failure or ShuttingDown()
                _, row = start.result()
                if row.accepted is not None:
                    yield row.accepted
                is_open = True
                while is_open:
                    deltas = await row.next(tick_s)
                    self._publish_began(open_request, deltas)
                    for delta in deltas:
                        raise_unless_complete(delta)
                        is_open = is_open and not delta.is_last
                        open_request.job.record(delta.parts)
                    open_request.is_complete = not is_open
                    yield deltas or row.progress or ()
            finally:
                cancel_start(start)
                self._abandon(open_request)

    async def _start(
        self, open_request: OpenRequest, lease: Lease, entry: ModelEntry
    ) -> tuple[EngineHandle, RowStream]:
        """Brings the request to a row that the engine has accepted."""
        request = entry.completed(open_request.job.request)
        self._renderers.begin(entry.folder, entry.formats)
        job = open_request.job
        render_request = RenderRequest(
            request, entry.context_tokens, job.origin, chain=job.late_chain
        )
        # A request that will be refused must not cause a swap, nor wait for a load.
        is_early = lease.awaited() is not None and may_overflow(render_request)
        prompt = await self._render(entry, render_request) if is_early else None
        handle = await lease.ready()
        self._warming.begin(handle)
        if prompt is None:
            render_request = replace(render_request, context_tokens=handle.info.context_tokens)
            prompt = await self._render(entry, render_request)
        generate = generate_request(request, open_request.job.request_id, prompt, handle.info)
        output = self._calls.apply(generate.output)
        generate = msgspec.structs.replace(
            generate, output=output, salt=open_request.job.sender.salt
        )
        self._await_prefix(open_request, handle, prompt)
        row = handle.link.submit(
            generate, lambda row, last: self._on_row_end(open_request, row, last)
        )
        open_request.handle, open_request.row = handle, row
        try:
            await row.until_accepted()
        except asyncio.CancelledError:
            handle.link.cancel(row.uid)
            raise
        except RowRefused as exc:
            raise refusal(exc, request) from None
        return handle, row

    async def _render(self, entry: ModelEntry, render_request: RenderRequest) -> Prompt:
        return await self._renderers.render(entry.folder, render_request, entry.formats)

    def _publish_began(self, open_request: OpenRequest, deltas: Sequence[Delta]) -> None:
        """Reports to routers that a request's prefill is over, unless its response shows it now:
        every dialect shows content, reasoning may be hidden from the client."""
        if open_request.begun or not deltas:
            return
        open_request.begun = True
        job = open_request.job
        parts = (part for delta in deltas for part in delta.parts)
        shows = job.request.stream and any(part.kind is PartKind.CONTENT for part in parts)
        if job.origin and not shows and not deltas[-1].is_last:
            self._hub.publish(Began(job.request_id, job.origin))

    # --- prefixes ----------------------------------------------------------------------------

    def _await_prefix(
        self, open_request: OpenRequest, handle: EngineHandle, prompt: Prompt
    ) -> None:
        """Makes the engine's digest expect the prefixes that are stored for the prompt."""
        job = open_request.job
        if job.chain is None:
            return
        tokens = prompt.positions
        open_request.digest = self._prefixes.digest(handle.entry.name)
        if open_request.digest is not None:
            self._awaited.add(job.request_id)
            open_request.reusable_tokens = lasting_tokens(job.request, prompt, tokens)
            open_request.digest.on_request(job.request_id, job.chain, tokens, len(prompt.tokens))

    def _abandon(self, open_request: OpenRequest) -> None:
        """The request's deltas are no longer read."""
        open_request.is_abandoned = True
        if open_request.row is None or open_request.row.ended:
            # The last bytes are sent first.
            asyncio.get_running_loop().call_soon(self._end_prefix, open_request)

    def _end_prefix(self, open_request: OpenRequest) -> None:
        """Ends the request in its digest; a complete response's chain is added to it, since later
        prompts continue from there."""
        digest, job, row = open_request.digest, open_request.job, open_request.row
        if digest is None:
            return
        is_whole = row is not None and row.finish in (FinishReason.STOP, FinishReason.LENGTH)
        if is_whole and open_request.is_complete:
            chain = job.chain_with_output()
            if chain is not None:
                digest.on_response(job.request_id, chain, open_request.reusable_tokens)
        digest.on_end(job.request_id)
        self._awaited.discard(job.request_id)
        self._prefixes.changed(digest)

    # --- ends --------------------------------------------------------------------------------

    def _on_row_end(self, open_request: OpenRequest, row: RowStream, last: Delta | None) -> None:
        reason: FinishReason | None = FinishReason.ERROR
        usage = None
        if open_request.is_abandoned:
            asyncio.get_running_loop().call_soon(self._end_prefix, open_request)
        if last is not None:
            if last.stop is not None and open_request.reusable_tokens is None and row.accepted:
                # The stored response is longer than its text.
                open_request.reusable_tokens = row.accepted.prompt_tokens
            reason, usage = row.finish, last.usage
        elif row.failure is not None:
            reason = _reason_of(row.failure)
        if open_request.is_abandoned and reason is FinishReason.ERROR:
            # The client had disconnected before the failure.
            reason = FinishReason.CANCELLED
        self._finish(open_request, usage or _usage_so_far(row), reason)

    def _finish(
        self, open_request: OpenRequest, usage: RowUsage, reason: FinishReason | None
    ) -> None:
        """Closes the request, and publishes it unless `reason` is None."""
        job, row = open_request.job, open_request.row
        self._open_requests.pop(job.request_id, None)
        if not self._open_requests:
            self._idle.set()
        if reason is None:
            return
        first_s = row.first_content_s if row is not None else None
        self._hub.finish(
            Finished(
                seq=0,
                request_id=job.request_id,
                origin=job.origin,
                model=job.request.model,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens,
                queue_s=usage.queue_s,
                ttft_s=None if first_s is None else first_s - job.arrived_s,
                prefill_s=usage.prefill_s,
                decode_s=usage.decode_s,
                reason=reason,
                finished_unix_s=time.time(),
                proof=job.sender.proof,
            ),
            job,
        )


def distinct_id(request_id: str) -> str:
    """Another id with the same start."""
    return f"{request_id[:51]}-{secrets.token_hex(6)}"


def _reason_of(failure: NodeError) -> FinishReason | None:
    """The outcome of a request that ends with this error; None for a model that is not here."""
    if isinstance(failure, RequestCancelled):
        return FinishReason.CANCELLED
    if isinstance(failure, UnknownModel):
        return None
    return FinishReason.ERROR if failure.status >= 500 else FinishReason.REFUSED


def _usage_so_far(row: RowStream) -> RowUsage:
    """The usage of a row for which the engine has reported none."""
    if row.accepted is None:
        return _usage_of(row.failure)
    accepted, tokens = row.accepted, row.token_count
    return RowUsage(accepted.prompt_tokens, accepted.cached_tokens, tokens, 0.0, 0.0, 0.0)


def _usage_of(failure: NodeError | None) -> RowUsage:
    """The usage of a request that has failed without a row: the prompt's tokens if it was too
    long."""
    overflow = failure.overflow if isinstance(failure, RowRefused | ContextTooLong) else None
    return _NOTHING if overflow is None else RowUsage(overflow.prompt_tokens, 0, 0, 0.0, 0.0, 0.0)
