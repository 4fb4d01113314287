"""What a dialect is: it reads a body into a request, and spells the answer's parts as bytes.

No dialect has a loop of its own over tokens: a stream is a `Writer` fed with what each engine step
brings, and the whole answer of stream=false is the same parts, collected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from node.errors import NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, RowUsage, TokenLogprob
from node.protocol.messages import FinishReason
from node.request import TextRequest


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What an answer says of itself."""

    request_id: str
    """Names the node too; ids of the answer are made of it."""
    model: str
    """The name that the client asked for."""
    created_s: int
    """Unix time."""


@dataclass(slots=True)
class Segment:
    """A run of parts of one kind, or one tool call."""

    kind: PartKind
    """`CONTENT`, `REASONING`, or `TOOL_START` for a call."""
    text: str
    """The arguments' JSON, of a call."""
    name: str = ""
    call_id: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of `CONTENT`, if asked for."""

    @property
    def is_whole_call(self) -> bool:
        """Whether it has all arguments of a call: what comes of one that was cut is no JSON."""
        try:
            msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return False
        return True


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    segments: list[Segment] = field(default_factory=list)
    """In the order in which the model said them."""
    finish: FinishReason = FinishReason.STOP
    """`STOP` or `LENGTH`."""
    stop: str | None = None
    """The stop string that ended it."""
    usage: RowUsage | None = None

    def add(self, parts: Sequence[Part]) -> None:
        """Takes the parts that came next: many at once, since each call copies what it goes on
        from."""
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
        """All content, or all reasoning."""
        return "".join(each.text for each in self.segments if each.kind is kind)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Of all content, if asked for."""
        return [each for segment in self.segments for each in segment.logprobs]

    @property
    def calls(self) -> list[Segment]:
        return [each for each in self.segments if each.kind is PartKind.TOOL_START]


class Writer(Protocol):
    """Spells one answer, or the choices of a request for several. Used by one task: `accepted` at
    most once and first, then either `parts` again and again and `ending` for each choice, or
    `error`; or `whole`."""

    silence: bytes
    """What a stream sends where there is nothing to say: a comment, or a ping."""

    def accepted(self, accepted: Accepted) -> None:
        """The engine has taken the request: its prompt's tokens are known."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """The events of some parts of a choice, the stream's opening ones before the first; empty
        where the client is not to see them."""

    def ending(self, last: Delta) -> bytes:
        """The events that end a choice, and the stream where it is the last one, the opening ones
        too where nothing was said. `last` ends with `STOP` or `LENGTH`; its parts have been given
        to `parts` already."""

    def error(self, error: NodeError) -> bytes:
        """The event of a failure within a stream. Nothing follows it."""

    def whole(self, answers: Sequence[Collected]) -> bytes:
        """The JSON of stream=false; the usage of each is that of all."""


class Asked(Protocol):
    """A body that has been read."""

    @property
    def request(self) -> TextRequest:
        """What it asks for."""

    def writer(self, head: AnswerHead) -> Writer:
        """Who spells the answer."""
