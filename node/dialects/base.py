"""The contract of a dialect: it parses a request body into a `TextRequest`, and serializes the
parts of the response.

No dialect loops over tokens itself. A streamed response is a `Writer` that gets the parts of each
engine step; with stream=false the same parts are collected and serialized once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from node.errors import NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, RowUsage, TokenLogprob
from node.protocol.messages import FinishReason
from node.request import TextRequest


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Metadata of a response, common to all of its events."""

    request_id: str
    """Names the node too; the response's own ids are derived from it."""
    model: str
    """The model's name as the client's request spells it."""
    created_s: int
    """Unix time in seconds."""

    def completion(self, id_prefix: str, kind: str) -> dict[str, Any]:
        """Returns the fields with which every object of OpenAI's completions begins."""
        return {
            "id": id_prefix + self.request_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }


@dataclass(slots=True)
class Segment:
    """A run of parts of one kind, or one tool call."""

    kind: PartKind
    """`CONTENT`, `REASONING`, or `TOOL_START` for a call."""
    text: str
    """For a tool call, its arguments as JSON."""
    name: str = ""
    call_id: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One entry for each token of `CONTENT`; empty unless the request set `logprobs`."""

    @property
    def is_whole_call(self) -> bool:
        """True if the call's arguments are complete JSON; a call that was cut off has invalid
        JSON."""
        try:
            msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return False
        return True


@dataclass(slots=True)
class Collected:
    """A whole response, collected from its parts."""

    segments: list[Segment] = field(default_factory=list)
    """In the order in which the model generated them."""
    finish: FinishReason = FinishReason.STOP
    """`STOP` or `LENGTH`."""
    stop: str | None = None
    """The stop string that ended the response."""
    usage: RowUsage | None = None

    def add(self, parts: Sequence[Part]) -> None:
        """Appends the parts that follow. Pass many at once: each call copies the text that it
        continues."""
        pieces: list[str] = []
        for part in parts:
            last = self.segments[-1] if self.segments else None
            goes_on = last is not None and part.kind in (last.kind, PartKind.TOOL_ARGS)
            if part.kind is PartKind.TOOL_START or not goes_on:
                self._join(pieces)
                self.segments.append(Segment(part.kind, "", part.name, part.call_id))
            pieces.append(part.text)
            if part.logprobs:
                self.segments[-1].logprobs.extend(part.logprobs)
        self._join(pieces)

    def _join(self, pieces: list[str]) -> None:
        if pieces:
            self.segments[-1].text += "".join(pieces)
            pieces.clear()

    def text(self, kind: PartKind) -> str:
        """The text of all segments of this kind, joined."""
        return "".join(each.text for each in self.segments if each.kind is kind)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Log probabilities of all content tokens; empty unless the request set `logprobs`."""
        return [each for segment in self.segments for each in segment.logprobs]

    @property
    def calls(self) -> list[Segment]:
        return [each for each in self.segments if each.kind is PartKind.TOOL_START]


class Writer(Protocol):
    """Serializes one response, with all of its choices.

    One task uses it, in this order: at most one `accepted`, then either any number of `parts` and
    one `ending` for each choice, or `error`; or, for stream=false, `whole`.
    """

    keep_alive: bytes
    """Sent in an idle interval of a stream: a comment line, a ping event, or a space."""
    content_type: bytes
    """Type of a stream."""

    def accepted(self, accepted: Accepted) -> None:
        """Called when the engine has accepted the request, so that the prompt's tokens are
        known."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """Returns the events for some parts of a choice; before the first ones, the events that
        open the stream. Empty if the client gets none of them."""

    def ending(self, last: Delta) -> bytes:
        """Returns the events that end a choice, and for the last choice those that end the stream.
        If nothing was sent before, the opening events come first. `last` ends with `STOP` or
        `LENGTH`; its parts have been passed to `parts` already."""

    def error(self, error: NodeError) -> bytes:
        """Returns the event for a failure within a stream. No event follows it."""

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        """Returns the JSON response of stream=false. The `usage` of each choice is that of all
        choices together."""


class DialectRequest(Protocol):
    """A parsed and validated request body, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def request(self) -> TextRequest:
        """The request, independent of the dialect."""

    def writer(self, head: ResponseHead) -> Writer:
        """Returns a new writer for this request's response."""


R = TypeVar("R", bound=DialectRequest)


def renamed(parsed: R, model: str) -> R:
    """The same parsed body for the model of that name."""
    if parsed.request.model == model:
        return parsed
    return replace(parsed, **{"request": replace(parsed.request, model=model)})
