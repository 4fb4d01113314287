"""Reads responses of third-party servers. These report no usage, so the router requests token
counts within the request and removes them from the response if the caller did not request them.
Their streams begin before there is content, and may stay open after the last event."""

import re
from typing import Any

import msgspec

from node.protocol.bounds import Tokens as TokenCount
from node.protocol.chain.prefix import read_fields
from node.protocol.messages import Finished, FinishReason
from node.protocol.ollama.json_lines import CONTENT_TYPE
from node.protocol.paths import (
    PATH_CHAT,
    PATH_COMPLETIONS,
    PATH_OLLAMA_CHAT,
    PATH_OLLAMA_GENERATE,
)
from router.client import sse
from router.types import Lease, Ticket, Tokens
from router.upstream import foreign_events
from router.upstream.foreign_events import Ending
from router.upstream.translated_body import translated
from router.upstream.translated_lines import LineTranslator

TRANSLATED_PATHS = (PATH_OLLAMA_CHAT, PATH_OLLAMA_GENERATE)
"""Paths of Ollama's dialect, which few servers know: they get the request in OpenAI's."""
COUNT_ON_REQUEST_PATHS = frozenset((PATH_CHAT, PATH_COMPLETIONS))
"""Paths whose streams have token counts only on request."""
REFUSAL_STATUSES = frozenset((400, 422))
_FIELD = "stream_options"
_INCLUDE_USAGE = msgspec.Raw(b'{"include_usage":true}')
_COUNT = re.compile(rb'"usage"\s*:\s*\{')
"""Many servers send `"usage": null` in each event before the one with the counts."""
_DATA = re.compile(rb"^data:[ ]?(\{.*)$", re.MULTILINE)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_Count = TokenCount | None
"""A token count with an upper bound; larger values are not believed."""


class _Cached(msgspec.Struct):
    cached_tokens: _Count = None


class _Reasoning(msgspec.Struct):
    reasoning_tokens: _Count = None


class _Usage(msgspec.Struct):
    """Token counts in OpenAI's or Anthropic's fields."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoning | None = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoning | None = None
    cache_read_input_tokens: _Count = None
    cache_creation_input_tokens: _Count = None


class _Timings(msgspec.Struct):
    """Timings of llama.cpp."""

    cache_n: _Count = None


class _Within(msgspec.Struct):
    usage: _Usage | None = None


class _Part(msgspec.Struct):
    """Any object that may contain token counts: a response, an event, a message or response within
    one."""

    choices: msgspec.Raw = msgspec.Raw()
    usage: _Usage | None = None
    timings: _Timings | None = None
    message: _Within | str | None = None
    response: _Within | str | None = None


_decode = msgspec.json.Decoder(_Part).decode
_decode_any = msgspec.json.Decoder().decode


class ForeignResponse:
    """One attempt at a third-party server: the body to send, and the token counts of its
    response."""

    def __init__(self, ticket: Ticket, *, may_add_count: bool) -> None:
        """`may_add_count` is True if the server accepts the field that requests token counts."""
        self.path, self.body = ticket.path, ticket.body
        self._lines: LineTranslator | None = None
        """Translates the response for a client of Ollama; None for others."""
        if ticket.path in TRANSLATED_PATHS:
            self._translate(ticket)
        self.tokens: Tokens | None = None
        """Token counts found so far."""
        self.first_content_s: float | None = None
        """Time of a stream's first content, set by its attempt."""
        self.adds_count = False
        """True if the body requests token counts that its caller did not."""
        self.ending: Ending | None = None
        """Outcome of a stream that has ended; None before its last event."""
        self.events = 0
        """Number of events that were passed on, about one for each token."""
        self._opening = b""
        """Events of a stream that precede all content."""
        if may_add_count and ticket.stream and self.path in COUNT_ON_REQUEST_PATHS:
            self._add_count()

    def _translate(self, ticket: Ticket) -> None:
        made = translated(ticket.path, ticket.body, stream=ticket.stream)
        self.path, self.body = made.path, made.body
        self._lines = LineTranslator(
            ticket.path, ticket.requested_model, hides_thinking=made.hides_thinking
        )

    def headers(self, given: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Returns the headers of a stream as its client gets it."""
        if self._lines is None:
            return given
        return {**given, b"content-type": CONTENT_TYPE}

    def _add_count(self) -> None:
        fields = read_fields(self.body)
        given = bytes(fields.get(_FIELD, b"null"))
        options = {}
        if given != b"null":
            try:
                options = msgspec.json.decode(given, type=dict[str, Any])
            except _BROKEN:
                return  # the server reports the error itself
        if options.get("include_usage") is True:
            return
        self.adds_count = True
        if options:
            both = {**options, "include_usage": True}
            fields = {**fields, _FIELD: msgspec.Raw(msgspec.json.encode(both))}
        else:
            fields = {**fields, _FIELD: _INCLUDE_USAGE}
        self.body = msgspec.json.encode(fields)

    def is_refused(self, status: int, body: bytes) -> bool:
        """Returns True if the server refuses the added field."""
        return self.adds_count and status in REFUSAL_STATUSES and _FIELD.encode() in body

    def begin(self, events: bytes) -> tuple[bytes, bytes]:
        """Returns (events to send, the part of them that starts with content). Events before
        content are buffered up to a limit, and sent with the content."""
        content_at = foreign_events.content_at(events)
        opening, self._opening = self._opening + events, b""
        if content_at is not None:
            return opening, events[content_at:]
        if len(opening) > sse.MAX_BUFFERED_BYTES:
            return opening, b""
        self._opening = opening
        return b"", b""

    def end(self) -> bytes:
        """Returns the buffered events of a stream that has ended without content; empty if they are
        only keep-alives."""
        return self._opening if sse.has_event(self._opening) else b""

    def rest(self) -> bytes:
        """Returns what the client still gets at the end of a stream."""
        return b"" if self._lines is None else self._lines.end(self.tokens)

    def pass_on(self, events: bytes) -> bytes:
        """Returns complete events without the one that the caller did not request, in the caller's
        dialect."""
        self.ending = self.ending or foreign_events.ending(events)
        self.events += events.count(b"data:")
        at = 0
        # A read may bring many events; only those with token counts are parsed.
        while (found := _COUNT.search(events, at)) is not None:
            begin, end = foreign_events.bounds(events, found.start())
            if self._takes(events[begin:end]):
                events, at = events[:begin] + events[end:], begin
            else:
                at = end
        return events if self._lines is None else self._lines.lines(events, self.tokens)

    def read(self, status: int, body: bytes) -> bytes:
        """Reads the token counts of a response that is not streamed; returns it in the caller's
        dialect, errors as they are."""
        if _COUNT.search(body) is not None:
            self._learn(body)
        if self._lines is None or status != 200:
            return body
        return self._lines.whole(body, self.tokens)

    def usage_record(self, lease: Lease, ended_s: float) -> Finished:
        """Returns the token counts and the times seen by the router in the form of a node's usage
        record."""
        prompt, cached, completion, reasoning = self.tokens or Tokens(0, 0, 0)
        first_s = self.first_content_s
        return Finished(
            seq=0,
            request_id=lease.node_request_id,
            origin="",
            model=lease.model,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            reasoning_tokens=reasoning,
            queue_s=0.0,
            ttft_s=None if first_s is None else first_s - lease.granted_s,
            prefill_s=0.0 if first_s is None else first_s - lease.granted_s,
            decode_s=0.0 if first_s is None else ended_s - first_s,
            reason=FinishReason.STOP,
            finished_unix_s=0.0,
        )

    def _takes(self, event: bytes) -> bool:
        """Reads an event; returns True if it is for the router alone."""
        found = _DATA.search(event)
        if found is None:
            return False
        part = self._learn(found[1].rstrip())
        if not self.adds_count or part is None or part.usage is None:
            return False
        return bool(_decode_any(part.choices or b"0") == [])

    def _learn(self, text: bytes) -> _Part | None:
        """Stores the token counts; returns None for invalid JSON or other values in place of
        numbers."""
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
    """Merges token counts; Anthropic sends them in two events, of which the later one may omit the
    prompt."""
    prompt = usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    completion = usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details else None
    if cached is None and timings is not None:
        cached = timings.cache_n
    apart = usage.cache_read_input_tokens
    if apart is not None and usage.prompt_tokens is None:
        # Anthropic's prompt count excludes tokens that were read from the cache or written to it.
        prompt, cached = (prompt or 0) + apart + (usage.cache_creation_input_tokens or 0), apart
    if before is not None:
        prompt, cached = prompt or before.prompt, cached or before.cached
        completion = before.completion if completion is None else completion
    prompt, cached, completion = prompt or 0, cached or 0, completion or 0
    return Tokens(prompt, min(cached, prompt), completion, _reasoning(usage, before, completion))


def _reasoning(usage: _Usage, before: Tokens | None, completion: int) -> int:
    """Returns the reasoning tokens among the completion's; 0 where the server does not count
    them."""
    details = usage.completion_tokens_details or usage.output_tokens_details
    found = details.reasoning_tokens if details else None
    if found is None:
        found = before.reasoning if before is not None else 0
    return min(found, completion)
