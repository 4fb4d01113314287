"""Blocks of calls in Python's syntax, in an output that comes in pieces.

Where a block ends is found in one pass over its brackets and quotes, before it is parsed.
"""

from collections.abc import Mapping

from node.parsing.any_of import AnyOf
from node.parsing.format import ToolFormat
from node.parsing.json_calls import close_block, read_declared_name, read_marked_calls
from node.parsing.markers import Markers
from node.parsing.python_calls import DEPTH, NoCalls, Quotes, read_calls
from node.parsing.sink import Call
from node.parsing.source import Malformed, Source, Step
from node.parsing.tell import call_of, tell

_OUTSIDE = Markers("'\"()[]{}")
_INSIDE = {quote: Markers((quote, "\\")) for quote in "'\""}


class BareList(ToolFormat):
    """Python calls as a list where the answer begins."""

    name = "bare_list"
    starts = ("[",)

    def read(self, source: Source, opener: str) -> Step[None]:
        tell(source, (yield from read_call_list(source)))


_BARE_LIST = BareList()


class PythonCalls(ToolFormat):
    """Python calls between markers."""

    def __init__(self, name: str, markers: Mapping[str, str]) -> None:
        """`markers`: what ends a block, by what it begins with."""
        self.name = name
        self.openers = tuple(markers)
        self.orphans = tuple(markers.values())
        self._closers = markers

    def read(self, source: Source, opener: str) -> Step[None]:
        closer = self._closers[opener]
        yield from source.space()
        bracket = yield from source.accept("[")
        yield from source.space()
        if (yield from source.peek()) == "{":
            yield from read_marked_calls(source, in_list=bool(bracket))
            yield from close_block(source, closer)
            return
        name = yield from read_declared_name(source)
        tell(source, (yield from self._rest(source, bracket + name, closer)))

    def _rest(self, source: Source, text: str, closer: str) -> Step[list[Call]]:
        """The calls up to the end marker, which may also stand within a string, or be missing."""
        quotes = Quotes()
        tried_length = 0
        while True:
            piece, marker = yield from source.capture(closer, at_end=True)
            text += piece
            quotes.read(piece)
            # A quote that is not escaped leaves a string open, so within one the end may have
            # come as well. Each try reads all of the text: only as it doubles, they stay few.
            if not marker or not quotes.is_open or len(text) >= 2 * tried_length:
                tried_length = len(text)
                try:
                    return declared_calls(source, text)
                except NoCalls:
                    if not marker or not quotes.is_open:
                        raise Malformed from None
            text += marker
            quotes.read(marker)


def or_bare(form: PythonCalls) -> AnyOf:
    """The format, and lists that nothing marks."""
    return AnyOf(form.name, (form, _BARE_LIST))


def declared_calls(source: Source, text: str) -> list[Call]:
    """The calls that the text is: all of them of declared tools. Raises `Malformed` where they are
    not, and `NoCalls` where the text is none."""
    return [call_of(source, call.name, call.arguments) for call in read_calls(text)]


def read_call_list(source: Source) -> Step[list[Call]]:
    """Reads on behind the `[` of a list of calls. Raises `Malformed`, at once where no declared
    name follows."""
    yield from source.space()
    name = yield from read_declared_name(source)
    return (yield from read_python(source, "[" + name))


def read_python(source: Source, begun: str) -> Step[list[Call]]:
    """Reads calls of declared tools up to the bracket that ends the one in `begun`, which was read
    before. Raises `Malformed`."""
    text = yield from read_brackets(source, begun)
    try:
        return declared_calls(source, text)
    except NoCalls:
        raise Malformed from None


def read_brackets(source: Source, begun: str) -> Step[str]:
    """Reads up to the bracket that ends the one in `begun`; all of the text. Raises `Malformed`
    where none does."""
    pieces = [begun]
    depth, quote = 1, ""
    while depth:
        piece, mark = yield from source.capture_any(_INSIDE[quote] if quote else _OUTSIDE)
        pieces += (piece, mark)
        if mark == "\\":
            char = yield from source.peek()
            pieces.append((yield from source.expect(char)) if char else "")
        elif mark in _INSIDE:
            quote = "" if quote else mark
        else:
            depth += 1 if mark in "([{" else -1
        if depth > DEPTH:
            raise Malformed
    return "".join(pieces)
