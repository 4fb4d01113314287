"""The receiver of what a format finds in an output: the format reads, the sink makes parts."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from node.ipc.messages import PartKind
from node.parsing.scanning.argument_hashes import ArgumentHashes


class ParsedCall(NamedTuple):
    name: str
    arguments: str | Mapping[str, Any]
    """The arguments as an object, or as its JSON text."""
    call_id: str
    """The id as the model wrote it; empty if it wrote none."""


class Sink(Protocol):
    """Receives what a format finds."""

    def emit_text(self, kind: PartKind, text: str) -> None:
        """Takes a piece of content or reasoning, which is not empty."""

    def resume(self, kind: PartKind) -> None:
        """Continues text of this kind that the prompt has begun, so white space before it
        counts."""

    def mark_edge(self) -> None:
        """Marks that markup separates the text before from the text behind."""

    def emit_call(self, name: str, arguments: str | Mapping[str, Any], call_id: str) -> None:
        """Takes a whole call; `arguments` is an object, or its JSON text. Raises `Malformed` if the
        tool is not one of the request's or the arguments are no object, and `OutputEnded`."""

    def earlier_calls(self, name: str) -> list[ArgumentHashes] | None:
        """Returns the hashes of the emitted calls of the tool; None if repeated calls are emitted
        again."""

    def begin_call(self, name: str, call_id: str) -> None:
        """Begins a call of one of the request's tools; its arguments follow."""

    def add_arguments(self, text: str) -> None:
        """Takes more of the arguments' JSON text."""

    def end_call(self, name: str, hashes: ArgumentHashes) -> None:
        """Ends the call. Raises `OutputEnded`."""

    def fail(self, reason: str) -> None:
        """Ends the output because the call that was begun is broken. The reason is a sentence.
        Raises `OutputEnded`."""

    def check_call(self, name: str, arguments: str | Mapping[str, Any]) -> None:
        """Raises `Malformed` if `emit_call` would."""
