"""The other end of `Source`: a grammar only reads, and the sink makes parts of what it finds."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from node.ipc.messages import PartKind
from node.parsing.scanning.digests import Digests


class Call(NamedTuple):
    name: str
    arguments: str | Mapping[str, Any]
    """The object, or its JSON text."""
    call_id: str
    """As the model wrote it; empty where it did not."""


class Sink(Protocol):
    """Takes what a grammar finds."""

    def say(self, kind: PartKind, text: str) -> None:
        """A piece of content or reasoning; not empty."""

    def resume(self, kind: PartKind) -> None:
        """What is said of the kind goes on from text of the prompt: white space counts."""

    def edge(self) -> None:
        """Markup stands here, between what was said and what will be."""

    def call(self, name: str, arguments: str | Mapping[str, Any], call_id: str) -> None:
        """A whole call; `arguments` is an object, or its JSON text. Raises `source.Malformed` where
        it is not one of the request's tools, or the arguments are no object, and
        `source.Finished`."""

    def earlier_calls(self, name: str) -> list[Digests] | None:
        """Of the calls of the tool that were told; None where a call that says the same as one is
        told again."""

    def begin_call(self, name: str, call_id: str) -> None:
        """A call of one of the request's tools, whose arguments follow."""

    def argue(self, text: str) -> None:
        """More of its arguments' JSON text."""

    def end_call(self, name: str, digests: Digests) -> None:
        """The call is whole. Raises `source.Finished`."""

    def fail(self, reason: str) -> None:
        """The call that was begun is none; the reason is a sentence. Raises `source.Finished`."""

    def check(self, name: str, arguments: str | Mapping[str, Any]) -> None:
        """Raises `source.Malformed` where `call` would."""
