"""Classifies the events of third-party servers' streams: those that precede all content, and those
that end the response."""

import re
from enum import StrEnum
from typing import Any

import msgspec

from router.client import sse

_BREAK = re.compile(rb"\r?\n\r?\n")
_ENDS = (b"\n\n", b"\n\r\n")
"""Ends of an event."""
_FIELDS = (b":", b"data:", b"event:", b"id:", b"retry:")
_OPENING_TYPES = frozenset(
    (
        "message_start",
        "ping",
        "response.content_part.added",
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.queued",
    )
)
_LAST_TYPES = frozenset(
    ("error", "message_stop", "response.completed", "response.failed", "response.incomplete")
)
_LAST_WORDS = (
    b'"error"',
    b'"message_stop"',
    b'"response.completed"',
    b'"response.failed"',
    b'"response.incomplete"',
)
_LAST = re.compile(
    rb'"(?:error"(?!\s*:\s*null)|message_stop"|response\.(?:completed|failed|incomplete)")'
)
"""Matches the type of a last event; within a text its quotes would be escaped. A hundred times
slower than searching for the words first."""
_DONE = b"[DONE]"
_DONE_EVENT = re.compile(rb"^data:[ ]?\[DONE\]", re.MULTILINE)
"""Slow, and so applied only to events that contain the word."""
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Ending(StrEnum):
    """Outcome of a response."""

    WHOLE = "whole"
    """Complete, or ended by an error that is the request's own fault."""
    FAILED = "failed"


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: Any = None


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""


class _Event(msgspec.Struct):
    """An event of any dialect."""

    type: str | None = None
    choices: list[_Choice] | None = None
    content_block: _Block | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def content_at(events: bytes) -> int | None:
    """Returns the offset of the first event that has content or ends the response; None if all only
    open it: comments, pings, roles, and parts that are still empty."""
    at = 0
    while at < len(events):
        found = _BREAK.search(events, at)
        end = found.end() if found else len(events)
        if not _is_opening(events[at:end]):
            return at
        at = end
    return None


def ending(events: bytes) -> Ending | None:
    """Returns how the events end the response; None if it continues."""
    at = 0 if any([word in events for word in _LAST_WORDS]) else len(events)
    while (found := _LAST.search(events, at)) is not None:
        begin, at = bounds(events, found.start())
        text = _data(events[begin:at].splitlines())
        if _is_last(text):
            return Ending.WHOLE if sse.node_error(text) is None else Ending.FAILED
    is_done = _DONE in events and _DONE_EVENT.search(events) is not None
    return Ending.WHOLE if is_done else None


def bounds(events: bytes, at: int) -> tuple[int, int]:
    """Returns (begin, end) of the event that contains the offset."""
    begins = [found + len(end) for end in _ENDS if (found := events.rfind(end, 0, at)) >= 0]
    ends = [found + len(end) for end in _ENDS if (found := events.find(end, at)) >= 0]
    return max(begins, default=0), min(ends, default=len(events))


def _data(lines: list[bytes]) -> bytes:
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _is_opening(event: bytes) -> bool:
    if not sse.has_event(event):
        return True
    lines = event.splitlines()
    text = _data(lines)
    if not text:
        return all(not line or line.startswith(_FIELDS) for line in lines)
    try:
        decoded = _decode(text)
    except _BROKEN:
        return False
    if decoded.error:
        return False
    if decoded.choices is not None:
        return all(map(_is_empty, decoded.choices)) if decoded.choices else not decoded.usage
    if decoded.type == "content_block_start":
        return decoded.content_block is not None and _is_empty_block(decoded.content_block)
    return decoded.type in _OPENING_TYPES


def _is_empty(choice: _Choice) -> bool:
    """Returns True if it has at most a role."""
    if choice.finish_reason or choice.text or (choice.delta is None and choice.text is None):
        return False
    return not any(value for name, value in (choice.delta or {}).items() if name != "role")


def _is_empty_block(block: _Block) -> bool:
    return block.type in ("text", "thinking") and not (block.text or block.thinking)


def _is_last(text: bytes) -> bool:
    try:
        decoded = _decode(text)
    except _BROKEN:
        return False
    return bool(decoded.error) or decoded.type in _LAST_TYPES
