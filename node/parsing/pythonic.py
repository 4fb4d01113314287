"""Calls as a list in Python's syntax: Llama 3.2 and 4 write `[f(a="v"), g()]`, bare or between
`<|python_start|>` and `<|python_end|>`."""

import re
from collections.abc import Mapping

from node.parsing.format import ToolFormat
from node.parsing.json_calls import close_block, read_declared_name, read_marked_calls
from node.parsing.python_calls import Call, NoCalls, ends_in_string, read_calls
from node.parsing.source import Malformed, Source, Step

_OUTSIDE = re.compile(r"[^'\"()\[\]{}]*")
_INSIDE = {quote: re.compile(rf"[^\\{quote}]*") for quote in "'\""}


class PythonCalls(ToolFormat):
    """Python calls between markers, or bare as a list where the answer begins."""

    def __init__(
        self, name: str, markers: Mapping[str, str], starts: tuple[str, ...] = ("[",)
    ) -> None:
        """`markers`: what ends a block, by what it begins with."""
        self.name = name
        self.openers = tuple(markers)
        self.orphans = tuple(markers.values())
        self.starts = starts
        self._closers = markers

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in self.starts:
            tell_calls(source, (yield from read_call_list(source)))
            return
        closer = self._closers[opener]
        yield from source.space()
        bracket = yield from source.accept("[")
        yield from source.space()
        if (yield from source.peek()) == "{":
            yield from read_marked_calls(source, in_list=bool(bracket))
            yield from close_block(source, closer)
            return
        name = yield from read_declared_name(source)
        tell_calls(source, (yield from self._rest(source, bracket + name, closer)))

    def _rest(self, source: Source, text: str, closer: str) -> Step[list[Call]]:
        """The calls up to the end marker, which may also stand within a string, or be missing."""
        while True:
            piece, marker = yield from source.capture(closer, at_end=True)
            text += piece
            try:
                return read_calls(text)
            except NoCalls:
                if not marker or not ends_in_string(text):
                    raise Malformed from None
            text += marker


def tell_calls(source: Source, calls: list[Call]) -> None:
    """Tells them. Raises `Malformed`."""
    for call in calls:
        source.call(call.name, call.arguments)


def read_call_list(source: Source) -> Step[list[Call]]:
    """Reads on behind the `[` of a list of calls. Raises `Malformed`, at once where no declared
    name follows."""
    yield from source.space()
    name = yield from read_declared_name(source)
    return (yield from read_python(source, "[" + name))


def read_python(source: Source, begun: str) -> Step[list[Call]]:
    """Reads calls up to the bracket that ends the one in `begun`, which was read before. Raises
    `Malformed`."""
    pieces = [begun]
    depth = 1
    while depth:
        pieces.append((yield from source.run(_OUTSIDE)))
        char = yield from source.peek()
        if not char:
            break
        pieces.append((yield from source.expect(char)))
        if char in _INSIDE:
            pieces.append((yield from _read_string(source, char)))
        else:
            depth += 1 if char in "([{" else -1
    try:
        return read_calls("".join(pieces))
    except NoCalls:
        raise Malformed from None


def _read_string(source: Source, quote: str) -> Step[str]:
    """Reads on behind the quote that begins it, the one that ends it included."""
    pieces = []
    while True:
        pieces.append((yield from source.run(_INSIDE[quote])))
        char = yield from source.peek()
        if char == "\\":
            char = yield from source.peek(2)
        if not char:
            break
        pieces.append((yield from source.expect(char)))
        if char == quote:
            break
    return "".join(pieces)


PYTHONIC = PythonCalls(
    "pythonic",
    {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"},
)
