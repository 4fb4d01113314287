"""Traces that contain texts instead of lengths: sessions of messages, or of growing prompts.

Tokens are estimated from bytes, and a prompt's blocks are named by chained hashes, so two prompts
share as many blocks as their common prefix has.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta

TOKEN_BYTES = 4
"""Approximate bytes per token of English and of code."""
BLOCK_BYTES = 64 * TOKEN_BYTES
TURN_MS = 1000.0
"""Milliseconds between requests of a session, if a trace has no times."""


class TextTraceRequest(msgspec.Struct, frozen=True):
    """One request with its texts."""

    session: int | str
    at_ms: float
    prompt: bytes
    output: bytes

    @property
    def input_tokens(self) -> int:
        return _tokens(self.prompt)

    @property
    def output_tokens(self) -> int:
        return _tokens(self.output) if self.output else 0

    def blocks(self) -> list[int]:
        """Names of the prompt's blocks; each depends on the whole prompt up to its end."""
        names, before = [], b""
        for at in range(0, max(1, len(self.prompt)), BLOCK_BYTES):
            piece = self.prompt[at : at + BLOCK_BYTES]
            before = blake2b(before + piece, digest_size=7).digest()
            names.append(int.from_bytes(before, "big"))
        return names


class GrowingPrompt(msgspec.Struct, frozen=True):
    """A request whose prompt extends a prefix of the session's previous prompt."""

    session: int | str
    t_ms: Annotated[float, Meta(ge=0, le=1e15)]
    """Milliseconds since the session's first request."""
    keep: Annotated[int, Meta(ge=0, le=1 << 30)]
    """Characters of the previous prompt that this one begins with."""
    append: str
    output: str
    ts_us: Annotated[float, Meta(ge=0, le=1e18)] | None = None
    """Microseconds since a moment that is the same for all sessions."""


class Conversation(msgspec.Struct, frozen=True):
    """A whole session. The messages before each response are a request."""

    session: int | str
    request_points: list[Annotated[int, Meta(ge=0)]]
    """Index of each response among the messages."""
    messages: list[msgspec.Raw]


_decode_growing = msgspec.json.Decoder(GrowingPrompt).decode
_decode_conversation = msgspec.json.Decoder(Conversation).decode


class TextTrace:
    """Reads the lines of one such trace."""

    def __init__(self) -> None:
        self._prompts: dict[int | str, str] = {}
        """The last prompt of each session."""

    def read(self, line: str | bytes) -> Sequence[TextTraceRequest]:
        """The requests of a line. Raises `msgspec.MsgspecError` or `ValueError`."""
        if b'"request_points"' in (line.encode() if isinstance(line, str) else line):
            return _requests(_decode_conversation(line))
        turn = _decode_growing(line)
        before = self._prompts.get(turn.session, "")
        if turn.keep > len(before):
            raise ValueError(f"`keep`: the prompt before it has {len(before)} characters only")
        prompt = self._prompts[turn.session] = before[: turn.keep] + turn.append
        at_ms = turn.t_ms if turn.ts_us is None else turn.ts_us / 1000
        return [TextTraceRequest(turn.session, at_ms, prompt.encode(), turn.output.encode())]


def _requests(session: Conversation) -> list[TextTraceRequest]:
    found = []
    for turn, point in enumerate(session.request_points):
        if point >= len(session.messages):
            raise ValueError(f"`request_points`: there is no message {point}")
        prompt = b"".join(bytes(message) for message in session.messages[:point])
        output = bytes(session.messages[point])
        found.append(TextTraceRequest(session.session, turn * TURN_MS, prompt, output))
    return found


def _tokens(text: bytes) -> int:
    return max(1, -(-len(text) // TOKEN_BYTES))
