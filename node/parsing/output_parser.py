"""The output parser: turns one sequence's text into parts (reasoning, content, tool calls), up to a
stop string.

All outputs are read by it: a response that is not streamed consists of the same parts, collected.
"""

from node.ipc.generate import OutputFormat
from node.ipc.messages import Part, PartKind
from node.parsing.format import Setup
from node.parsing.output_layout import layout_of, reads_calls
from node.parsing.part_collector import PartCollector
from node.parsing.registry import REASONING_MARKERS
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import OutputEnded, Step
from node.parsing.scanning.stop_strings import StopMatcher


class OutputParser:
    """Parses one sequence's text. Nothing may be fed once it has `ended` or after `finish`."""

    def __init__(
        self,
        output: OutputFormat | None,
        stops: tuple[str, ...] = (),
        token_markers: frozenset[str] = frozenset(),
        uid: str = "",
    ) -> None:
        """`token_markers` are the texts of the vocabulary's added tokens; ids of calls are derived
        from `uid`. Raises `KeyError` for an unknown format."""
        self._stops = StopMatcher(stops)
        self._reader: _FormatRunner | None = None
        if output is not None:
            self._reader = _FormatRunner(output, self._stops, token_markers, uid)
        self._ended = False

    @property
    def ended(self) -> bool:
        """True if a stop string was found, or the only call that the request allows."""
        return self._ended

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    @property
    def error(self) -> str | None:
        """A sentence that says why the output could not be parsed to its end, which has then
        `ended`."""
        return None if self._reader is None else self._reader.collector.error

    @property
    def in_reasoning(self) -> bool:
        """True if the text that comes next is reasoning."""
        return self._reader is not None and self._reader.source.output.in_reasoning

    @property
    def stop_tokens(self) -> frozenset[str]:
        """Texts of tokens that end the sequence but must still be fed."""
        return frozenset() if self._reader is None else self._reader.stop_tokens

    def feed(self, text: str) -> list[Part]:
        """Returns the parts that become complete with more text."""
        if self._reader is None:
            return self._plain(text)
        self._reader.source.append(text)
        return self._advance(self._reader)

    def feed_token(self, text: str, *, special: bool) -> list[Part]:
        """Returns the parts that become complete with an added token of the vocabulary. A special
        token is not text, unless the format gives it a meaning."""
        if self._reader is None:
            return [] if special else self._plain(text)
        self._reader.source.append_token(text, special=special)
        return self._advance(self._reader)

    @property
    def block_begin(self) -> int | None:
        """Position, in characters of the output, where the call that is being read begins; None if
        no call is being read."""
        return None if self._reader is None else self._reader.source.block.arrived_begin

    @property
    def block_text(self) -> str:
        """The text of that call so far. Each access joins it anew."""
        return "" if self._reader is None else self._reader.source.block.text

    def end_block(self) -> None:
        """Ends the call that is being read before the text that comes next."""
        if self._reader is not None:
            self._reader.source.block.end_here()

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """Ends the text and returns the parts that were buffered. `is_cut` means that the model
        would have continued."""
        if self._ended:
            return []
        if self._reader is None:
            rest = self._stops.flush()
            return [Part(PartKind.CONTENT, rest)] if rest else []
        reader = self._reader
        reader.source.end(is_cut=is_cut)
        parts = self._advance(reader, last=True)
        if is_cut and reader.must_call:
            # An output that is constrained to calls contains only calls, or the start of one.
            return [part for part in parts if part.kind is not PartKind.CONTENT]
        return parts

    def _plain(self, text: str) -> list[Part]:
        text, self._ended = self._stops.feed(text)
        return [Part(PartKind.CONTENT, text)] if text else []

    def _advance(self, reader: "_FormatRunner", *, last: bool = False) -> list[Part]:
        if not self._ended:
            self._ended = reader.advance(last=last)
        return reader.collector.take()


class _FormatRunner:
    """Runs a format over the text of one output."""

    def __init__(
        self, output: OutputFormat, stops: StopMatcher, token_markers: frozenset[str], uid: str
    ) -> None:
        self.must_call = output.must_call
        calls_are_read = reads_calls(output)
        layout = layout_of(output)
        self.collector = PartCollector(output, stops, uid)
        schemas = {tool.name: tool.parameters for tool in output.tools}
        self.source = Source(self.collector, schemas, layout.strict & token_markers)
        if output.streams_calls:
            self.source.calls.stream()
        self.source.tokens.pair(*layout.families(reads_calls=calls_are_read))
        splits_reasoning = output.reasoning != "none"
        if not splits_reasoning:
            self.source.tokens.kept = REASONING_MARKERS
        self.stop_tokens = frozenset(layout.stop_tokens)
        setup = Setup(output.prompt_tail, splits_reasoning, calls_are_read)
        self._steps = self._read(layout.read(self.source, setup))
        # Finds out, before any text, if the output begins within reasoning.
        self.advance(last=False)

    def advance(self, *, last: bool) -> bool:
        """Reads the text that has arrived, and returns True if the rest is not to be read."""
        try:
            next(self._steps)
        except StopIteration:
            pass
        except OutputEnded:
            return True
        if last:
            self.collector.close()
        return False

    def _read(self, steps: Step[None]) -> Step[None]:
        yield from steps
        yield from self.source.rest(PartKind.CONTENT)
