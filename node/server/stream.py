"""Turns a sequence's parts into the bytes of a response: server-sent events, or one JSON object.

The head of the response is not sent until the first content, or until the sequence was silent for
`STREAM_KEEPALIVE_S`; before it is sent, every failure can still be an HTTP status.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Send

from node.agent.batch import Batch, Batches
from node.dialects.base import Collected, Writer
from node.engines.lease import ModelAwaited
from node.errors import EngineFault, NodeError
from node.ipc.messages import Accepted, Delta, Part, Progress, RowUsage
from node.protocol import comments
from node.protocol.event_stream import CONTENT_TYPE as EVENT_STREAM
from node.protocol.headers import HEADER_CACHED_TOKENS, HEADER_PROMPT_TOKENS

Headers = list[tuple[bytes, bytes]]
BeforeEnd = Callable[[], Awaitable[None]]
"""Awaited when the whole response has been serialized, before the client gets its end."""

_NEARLY = 0.9
"""Share of the idle interval that counts as all of it: a timer may fire a little early by another
clock."""


async def _nothing() -> None:
    """Does nothing before the end."""


class EventStream:
    """Writes one streamed response. `started` is True once its head is sent."""

    def __init__(
        self, writer: Writer, send: Send, headers: Headers, before_end: BeforeEnd = _nothing
    ) -> None:
        self.started = False
        self._writer = writer
        self._send = send
        self._headers = [*headers, *stream_headers(writer.content_type)]
        self._before_end = before_end
        self._written_s = 0.0

    async def run(self, batches: Batches, idle_interval_s: float) -> None:
        """Writes the response until its end, and keep-alive bytes when nothing else was written for
        `idle_interval_s` seconds. Raises a `NodeError` before the head is sent only; afterwards the
        error becomes the last event of the stream."""
        self._written_s = time.monotonic()
        try:
            async for batch in batches:
                if isinstance(batch, Accepted):
                    # A prediction: sequences before this one may store more, and memory pressure
                    # may evict.
                    self._headers = self._headers + prompt_headers(batch)
                    self._writer.accepted(batch)
                    continue
                deltas = () if isinstance(batch, Progress | ModelAwaited) else batch
                is_last = _is_complete(deltas)
                body = self._serialize(deltas)
                # Many tokens may come without any text, so a batch alone does not end an idle
                # interval.
                if not body and time.monotonic() - self._written_s >= idle_interval_s * _NEARLY:
                    body = self._filler(batch)
                if is_last:
                    await self._before_end()
                if body:
                    await self._write(body, more=not is_last)
        except NodeError as exc:
            if not self.started:
                raise
            error = self._writer.error(exc)
            await self._before_end()
            await self._write(error, more=False)

    def _serialize(self, deltas: Sequence[Delta]) -> bytes:
        writer = self._writer
        if len(deltas) == 1 and deltas[0].finish is None:
            delta = deltas[0]
            return writer.parts(delta.parts, delta.choice) if delta.parts else b""
        pieces: list[bytes] = []
        for delta in deltas:
            if delta.parts:
                pieces.append(writer.parts(delta.parts, delta.choice))
            if delta.finish is not None:
                pieces.append(writer.ending(delta))
        return b"".join(pieces)

    def _filler(self, batch: Batch) -> bytes:
        keep_alive = self._writer.keep_alive
        if self._writer.content_type != EVENT_STREAM:
            return keep_alive  # only server-sent events have comments
        if isinstance(batch, ModelAwaited):
            comment = _awaited_comment(batch)
        elif isinstance(batch, Progress):
            percent = 100 * batch.done_tokens // max(batch.total_tokens, 1)
            comment = b": prefill %d %%\n\n" % percent
        else:
            return keep_alive
        # Added to a keep-alive event, but in place of a keep-alive comment.
        return comment if keep_alive.startswith(b":") else comment + keep_alive

    async def _write(self, body: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._written_s = time.monotonic()


def stream_headers(content_type: bytes) -> Headers:
    """Returns the headers of a stream."""
    return [(b"content-type", content_type), (b"cache-control", b"no-cache")]


async def collect(
    batches: Batches, writer: Writer, before_end: BeforeEnd = _nothing
) -> tuple[bytes, Headers]:
    """Collects the parts of a whole response; returns its JSON and headers about it. Raises a
    `NodeError`."""
    parts: dict[int, list[Part]] = {}
    outputs: dict[int, Collected] = {}
    last: Delta | None = None
    async for batch in batches:
        if isinstance(batch, Accepted):
            writer.accepted(batch)
            continue
        for delta in () if isinstance(batch, Progress | ModelAwaited) else batch:
            parts.setdefault(delta.choice, []).extend(delta.parts)
            if delta.finish is not None:
                outputs[delta.choice] = Collected(finish=delta.finish, stop=delta.stop)
                last = delta
    if last is None or not last.is_last:
        raise EngineFault("The engine ended the request without reporting its usage.")
    # A cancelled response may have no usage; the writer decides whether it may lack it.
    for choice, collected in outputs.items():
        collected.usage = last.usage
        collected.add(parts[choice])
    body = writer.whole([outputs[choice] for choice in sorted(outputs)])
    await before_end()
    return body, [] if last.usage is None else prompt_headers(last.usage)


def prompt_headers(counts: Accepted | RowUsage) -> Headers:
    """Returns headers with the length of the prompt and the number of its tokens that come from the
    prefix cache, which before the end is a prediction."""
    return [
        (HEADER_PROMPT_TOKENS.encode(), b"%d" % counts.prompt_tokens),
        (HEADER_CACHED_TOKENS.encode(), b"%d" % counts.cached_tokens),
    ]


def _awaited_comment(awaited: ModelAwaited) -> bytes:
    if awaited.blocked_by is not None:
        return comments.waiting_for(awaited.name, awaited.blocked_by)
    return comments.loading(awaited.name, awaited.progress)


def _is_complete(deltas: Sequence[Delta]) -> bool:
    """True if the last delta ends the response."""
    return bool(deltas) and deltas[-1].is_last
