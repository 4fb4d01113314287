"""From a row's parts to the bytes of an answer: server-sent events, or one JSON object.

The only writer of `data:`. The head is held until the first content, or until the row has been
silent for `HOLD_HEAD_S`; before it is out, every failure can still be an HTTP status.
"""

import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.types import Send

from node.errors import EngineFault, NodeError
from node.openai import Answer, error_body
from node.protocol.messages import FinishReason
from node.types import Accepted, Delta, Progress

Batch = Accepted | Sequence[Delta] | Progress
"""That the engine has taken the row, or deltas that came together. None of them means silence, and
so does how far the prefill is."""
Batches = AsyncIterator[Batch]
Headers = list[tuple[bytes, bytes]]

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
]
KEEP_ALIVE = b": keep-alive\n\n"
_NEARLY = 0.9
"""A timer may fire a little early by another clock."""
_DONE = b"data: [DONE]\n\n"

_encode_text = msgspec.json.Encoder().encode


class EventStream:
    """Writes one streamed answer. `started` tells whether its head is out."""

    def __init__(self, answer: Answer, send: Send, headers: Headers) -> None:
        self.started = False
        self._answer = answer
        self._send = send
        self._headers = headers + STREAM_HEADERS
        self._first_head: bytes | None = _event_head(answer.first_head)
        self._head = _event_head(answer.content_head)
        self._tail = answer.content_tail + b"\n\n"
        self._written_s = 0.0

    async def run(self, batches: Batches, silence_s: float) -> None:
        """Writes the answer until its end, and a comment where nothing else was written for
        `silence_s`. Raises a `NodeError` before the head is out only; afterwards it becomes one
        event in the stream, and there is no `[DONE]`."""
        self._written_s = time.monotonic()
        try:
            async for batch in batches:
                if isinstance(batch, Accepted):
                    # A prediction: rows before this one may store more, and pressure evicts.
                    self._headers = self._headers + cached_header(batch.cached_tokens)
                    continue
                deltas = () if isinstance(batch, Progress) else batch
                body = self._spell(deltas)
                # Tokens may come for long without text, so a batch is not yet an end of silence.
                if not body and time.monotonic() - self._written_s >= silence_s * _NEARLY:
                    body = _comment(batch) if isinstance(batch, Progress) else KEEP_ALIVE
                if body:
                    await self._write(body, more=not _is_complete(deltas))
        except NodeError as exc:
            if not self.started:
                raise
            await self._write(_event(error_body(exc)), more=False)

    def _spell(self, deltas: Sequence[Delta]) -> bytes:
        pieces: list[bytes] = []
        for delta in deltas:
            for part in delta.parts:
                pieces += (self._first_head or self._head, _encode_text(part.text), self._tail)
                self._first_head = None
        if _is_complete(deltas):
            pieces.append(self._ending(deltas[-1]))
        return b"".join(pieces)

    def _ending(self, last: Delta) -> bytes:
        answer = self._answer
        role = answer.role() if self._first_head is not None else None
        body = _event(role) if role is not None else b""
        body += _event(answer.finish(last.finish or FinishReason.STOP))
        if answer.include_usage and last.usage is not None:
            body += _event(answer.usage(last.usage))
        return body + _DONE

    async def _write(self, body: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._written_s = time.monotonic()


async def collect(batches: Batches, answer: Answer) -> tuple[bytes, Headers]:
    """The whole answer as JSON, by the same road, and headers about it. Raises a `NodeError`."""
    pieces: list[str] = []
    last: Delta | None = None
    async for batch in batches:
        for delta in () if isinstance(batch, Accepted | Progress) else batch:
            pieces += [part.text for part in delta.parts]
            last = delta
    if last is None or last.finish is None or last.usage is None:
        raise EngineFault("The engine ended the request without its accounts.")
    body = answer.whole("".join(pieces), last.finish, last.usage)
    return body, cached_header(last.usage.cached_tokens)


def cached_header(cached_tokens: int) -> Headers:
    """How much of the prompt comes from the prefix cache: before the end, a prediction."""
    return [(b"x-fleet-cached-tokens", str(cached_tokens).encode())]


def _is_complete(deltas: Sequence[Delta]) -> bool:
    """Whether the last delta ends the answer as the client wants it."""
    return bool(deltas) and deltas[-1].finish in (FinishReason.STOP, FinishReason.LENGTH)


def _comment(progress: Progress) -> bytes:
    percent = 100 * progress.done_tokens // max(progress.total_tokens, 1)
    return b": prefill %d %%\n\n" % percent


def _event_head(head: bytes) -> bytes:
    return b"data: " + head


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"
