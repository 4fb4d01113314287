"""Reads streamed chat responses of OpenAI's API, line by line. It opens no connection."""

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, str]
Kind = Literal["comment", "reasoning", "text", "summary"]

_FLEET_COMMENT = re.compile(r"fleet node=(\S+)")
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class ResponseFailed(Exception):
    """A response did not arrive as a whole; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of a response."""

    kind: Kind
    """A comment tells of progress before the first content, such as that of a load; a summary is
    the last piece, for people."""
    text: str


def chat_body(
    model: str,
    messages: Sequence[Message],
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> dict[str, object]:
    """The body of a streamed chat request whose response ends with its usage."""
    body: dict[str, object] = {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if temperature is not None:
        body["temperature"] = temperature
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return body


@dataclass(slots=True)
class StreamedChat:
    """The part of a response that has arrived. Times are of one monotonic clock."""

    started_s: float
    node: str = ""
    """The node that serves it; empty if the server names none."""
    text: str = ""
    """The content without the reasoning."""
    prompt_tokens: int | None = None
    """None if the server does not report it, as for the other numbers of tokens."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    times_s: list[float] = field(default_factory=list)
    """Times of the chunks with content or reasoning."""
    is_whole: bool = False
    ended_s: float | None = None
    """When it was complete; None if it was not read to its end."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds until the first content; None if there is none yet."""
        return self.times_s[0] - self.started_s if self.times_s else None

    @property
    def wait_s(self) -> float:
        """Seconds until the first content; until the end if there is none."""
        return [*self.times_s, self.ended_s or time.monotonic()][0] - self.started_s

    @property
    def decode_s(self) -> float:
        """Seconds from the first content to the last."""
        return self.times_s[-1] - self.times_s[0] if self.times_s else 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the response as the server counts them; the number of chunks if it does not."""
        return max(self.completion_tokens or 0, len(self.times_s))

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first; over the whole wait if all arrived at once."""
        if self.ttft_s is None or not self.tokens:
            return None
        if self.tokens > 1 and self.decode_s > 0:
            return (self.tokens - 1) / self.decode_s
        return self.tokens / max(self.ttft_s, 1e-6)

    def read(self, line: str, now_s: float) -> list[Piece]:
        """Adds one line of the event stream. Raises `ResponseFailed` for an error in the stream and
        for an invalid chunk."""
        name, _, value = line.partition(":")
        value = value.strip()
        if name == "data":
            return self._chunk(value, now_s)
        if name or not value:
            return []
        if found := _FLEET_COMMENT.search(value):
            self.node = found[1]
            return []
        return [Piece("comment", value)]

    def require_whole(self) -> None:
        """Raises `ResponseFailed` if the stream has ended before the response."""
        if not self.is_whole:
            raise ResponseFailed("The response ended early.")

    def _chunk(self, data: str, now_s: float) -> list[Piece]:
        if data == "[DONE]":
            self.is_whole = True
            return []
        try:
            chunk = json.loads(data)
            if error := chunk.get("error"):
                raise ResponseFailed(_message(error))
            self._count(chunk.get("usage") or {})
            deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
            pieces = list(_pieces(deltas))
        except (ValueError, AttributeError, TypeError) as error:
            raise ResponseFailed(f"The response has an invalid chunk: {data}") from error
        if pieces:
            self.times_s.append(now_s)
        self.text += "".join(piece.text for piece in pieces if piece.kind == "text")
        return pieces

    def _count(self, usage: dict[str, Any]) -> None:
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens")
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def summary(streamed: StreamedChat) -> str:
    """Node, tokens and speed of a response in one line."""
    parts = [f"node {streamed.node}"] if streamed.node else []
    if streamed.prompt_tokens is not None and streamed.completion_tokens is not None:
        parts.append(f"{streamed.prompt_tokens} + {streamed.completion_tokens} tokens")
    if streamed.ttft_s is not None:
        parts.append(f"TTFT {streamed.ttft_s:.2f} s")
    if streamed.completion_tokens and streamed.tokens_per_s is not None:
        parts.append(f"{streamed.tokens_per_s:.1f} tokens/s")
    return " · ".join(parts)


def _pieces(deltas: Iterable[dict[str, Any]]) -> Iterable[Piece]:
    for delta in deltas:
        if reasoning := next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), None):
            yield Piece("reasoning", _text(reasoning))
        if content := delta.get("content"):
            yield Piece("text", _text(content))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a piece of text is no string")
    return value


def _message(error: object) -> str:
    """The sentence of an error in a stream, whose form differs between servers."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)
