"""Emits the text that a format finds in an output, and tracks what was emitted."""

from node.ipc.messages import PartKind
from node.parsing.scanning.added_tokens import AddedTokens
from node.parsing.scanning.sink import Sink
from node.parsing.scanning.step import Malformed


class TextEmitter:
    """Emits content and reasoning of one output."""

    def __init__(self, sink: Sink, tokens: AddedTokens) -> None:
        self.in_reasoning = False
        """True if the text that comes next is reasoning."""
        self.has_text = False
        """True if text other than white space was emitted since the last edge or call."""
        self.has_content = False
        """True if any content other than white space was emitted."""
        self._sink = sink
        self._tokens = tokens

    def emit(self, kind: PartKind, text: str) -> None:
        """Emits a text, which may be empty."""
        if text:
            self._sink.emit_text(kind, text)
            if not text.isspace():
                self.has_text = True
                self.has_content = self.has_content or kind is PartKind.CONTENT

    def emit_beside(self, text: str) -> None:
        """Emits content that stands in a block beside its calls. Raises `Malformed` in reasoning,
        where the whole block may turn out to be text."""
        if text and self.in_reasoning:
            raise Malformed
        self.emit(PartKind.CONTENT, text)

    def emit_marker(self, kind: PartKind, marker: str) -> None:
        """Emits the marker that was just read as text."""
        self._tokens.begin_text(marker)
        self.emit(kind, marker)

    def mark_edge(self) -> None:
        """Marks that the markup just read separates the text before from the text behind."""
        self._sink.mark_edge()
        self._tokens.mark_edge()
        self.has_text = False
        self.in_reasoning = False

    def resume(self, kind: PartKind) -> None:
        """Continues text of this kind that the prompt has begun."""
        self._sink.resume(kind)
        self.has_text = kind is PartKind.CONTENT
