"""Answers of servers of others. They keep no accounts for us, so they are asked within the request
for the tokens that it took, and what the caller did not ask for is taken out again. They begin a
stream before there is content, and may not end it after its last event."""

import re
from typing import Any

import msgspec

from node.protocol.bounds import Tokens as Told
from node.protocol.messages import Finished, FinishReason
from node.protocol.prefix import read_fields
from router.client import sse
from router.types import Lease, Tokens
from router.upstream import foreign_events
from router.upstream.foreign_events import Ending

ASKED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Elsewhere a stream says it by itself."""
REFUSAL_STATUSES = frozenset((400, 422))
_FIELD = "stream_options"
_ASK = msgspec.Raw(b'{"include_usage":true}')
_COUNT = re.compile(rb'"usage"\s*:\s*\{')
"""Many servers have a `usage` of null in each event before the one that counts."""
_DATA = re.compile(rb"^data:[ ]?(\{.*)$", re.MULTILINE)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_Count = Told | None
"""A server that says more is not believed."""


class _Cached(msgspec.Struct):
    cached_tokens: _Count = None


class _Usage(msgspec.Struct):
    """A count in OpenAI's words, or in Anthropic's."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Cached | None = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    input_tokens_details: _Cached | None = None
    cache_read_input_tokens: _Count = None
    cache_creation_input_tokens: _Count = None


class _Timings(msgspec.Struct):
    """Of llama.cpp."""

    cache_n: _Count = None


class _Within(msgspec.Struct):
    usage: _Usage | None = None


class _Part(msgspec.Struct):
    """What may hold a count: an answer, an event, a message or response within one."""

    choices: msgspec.Raw = msgspec.Raw()
    usage: _Usage | None = None
    timings: _Timings | None = None
    message: _Within | str | None = None
    response: _Within | str | None = None


_decode = msgspec.json.Decoder(_Part).decode
_decode_any = msgspec.json.Decoder().decode


class ForeignAnswer:
    """One attempt at a server of others: the body to send, and the count in its answer."""

    def __init__(self, path: str, body: bytes, *, stream: bool, ask: bool) -> None:
        """`ask`: whether the server takes the field that asks for a count."""
        self.body = body
        self.tokens: Tokens | None = None
        """As far as the answer has told."""
        self.first_content_s: float | None = None
        """When a stream began, as its relay has seen it."""
        self.asks = False
        """Whether the body asks for what its caller did not."""
        self.ending: Ending | None = None
        """Of a stream whose last event has come."""
        self._opening = b""
        """Of a stream, what came before any content."""
        if ask and stream and path in ASKED_PATHS:
            self._ask()

    def _ask(self) -> None:
        fields = read_fields(self.body)
        given = bytes(fields.get(_FIELD, b"null"))
        asked = {}
        if given != b"null":
            try:
                asked = msgspec.json.decode(given, type=dict[str, Any])
            except _BROKEN:
                return  # the server refuses it in its own words
        if asked.get("include_usage") is True:
            return
        self.asks = True
        if asked:
            both = {**asked, "include_usage": True}
            fields = {**fields, _FIELD: msgspec.Raw(msgspec.json.encode(both))}
        else:
            fields = {**fields, _FIELD: _ASK}
        self.body = msgspec.json.encode(fields)

    def is_refused(self, status: int, answer: bytes) -> bool:
        """Whether the server does not take what was added."""
        return self.asks and status in REFUSAL_STATUSES and _FIELD.encode() in answer

    def begin(self, events: bytes) -> tuple[bytes, bytes]:
        """The whole events that may be passed on once there is content, and those from the content
        on. Until then they are kept, unless they grow too many."""
        content_at = foreign_events.content_at(events)
        opening, self._opening = self._opening + events, b""
        if content_at is not None:
            return opening, events[content_at:]
        if len(opening) > sse.MAX_HELD_BYTES:
            return opening, b""
        self._opening = opening
        return b"", b""

    def end(self) -> bytes:
        """What was kept of a stream that has ended without content, unless it says nothing."""
        return self._opening if sse.has_event(self._opening) else b""

    def pass_on(self, events: bytes) -> bytes:
        """Whole events, without the one that the caller did not ask for."""
        self.ending = self.ending or foreign_events.ending(events)
        at = 0
        # A burst may bring all events at once: only those are looked at that count.
        while (found := _COUNT.search(events, at)) is not None:
            begin, end = foreign_events.bounds(events, found.start())
            if self._takes(events[begin:end]):
                events, at = events[:begin] + events[end:], begin
            else:
                at = end
        return events

    def read(self, answer: bytes) -> None:
        """An answer that is no stream."""
        if _COUNT.search(answer) is not None:
            self._learn(answer)

    def accounts(self, lease: Lease, ended_s: float) -> Finished:
        """The count, and the times that the router has seen, as a node's accounts have them."""
        prompt, cached, completion = self.tokens or Tokens(0, 0, 0)
        first_s = self.first_content_s
        return Finished(
            seq=0,
            request_id=lease.node_request_id,
            origin="",
            model=lease.model,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            reasoning_tokens=0,
            queue_s=0.0,
            ttft_s=None if first_s is None else first_s - lease.granted_s,
            prefill_s=0.0 if first_s is None else first_s - lease.granted_s,
            decode_s=0.0 if first_s is None else ended_s - first_s,
            reason=FinishReason.STOP,
            finished_unix_s=0.0,
        )

    def _takes(self, event: bytes) -> bool:
        """Reads an event; whether it is for the router alone."""
        found = _DATA.search(event)
        if found is None:
            return False
        part = self._learn(found[1].rstrip())
        if not self.asks or part is None or part.usage is None:
            return False
        return bool(_decode_any(part.choices or b"0") == [])

    def _learn(self, text: bytes) -> _Part | None:
        """None of what is no JSON, or has other things where a count has its numbers."""
        try:
            part = _decode(text)
        except _BROKEN:
            return None
        within = part.message or part.response
        usage = (within.usage if isinstance(within, _Within) else None) or part.usage
        if usage is not None:
            self.tokens = _tokens(usage, part.timings, self.tokens)
        return part


def _tokens(usage: _Usage, timings: _Timings | None, before: Tokens | None) -> Tokens:
    """Anthropic's count comes in two parts, of which the later one need not repeat the prompt."""
    prompt = usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    completion = usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details else None
    if cached is None and timings is not None:
        cached = timings.cache_n
    apart = usage.cache_read_input_tokens
    if apart is not None and usage.prompt_tokens is None:
        # Anthropic's count of the prompt is without what was read from the cache or written to it.
        prompt, cached = (prompt or 0) + apart + (usage.cache_creation_input_tokens or 0), apart
    if before is not None:
        prompt, cached = prompt or before.prompt, cached or before.cached
        completion = before.completion if completion is None else completion
    prompt, cached = prompt or 0, cached or 0
    return Tokens(prompt, cached if cached < prompt else prompt, completion or 0)
