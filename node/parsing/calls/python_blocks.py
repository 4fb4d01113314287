"""Blocks of calls in Python's syntax, in an output that arrives in pieces.

The end of a block is found in one pass over its brackets and quotes, before it is parsed.
"""

import re
from collections.abc import Mapping, Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.json_calls import close_block, read_declared_name, read_marked_calls
from node.parsing.calls.python_calls import DEPTH, NotPythonCalls, Quotes, read_calls
from node.parsing.calls.spelled_json import bare_name
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.parsed_calls import call_of, emit_calls
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.literal_values import spell_value
from node.parsing.values.python_literals import PythonLiterals
from node.parsing.values.raw_values import in_order, written_name

_OUTSIDE = Markers("'\"()[]{}")
_INSIDE = {quote: Markers((quote, "\\")) for quote in "'\""}


_FUNCTION = re.compile(r"[\w.\-:/]+")


def _spell_call(lark: Lark, tools: Sequence[ToolSchema], closer: str) -> str:
    """Returns the expression of a call of one of the tools, within a block that the closer ends.
    Raises `UnsupportedConstraint`."""
    language, calls = PythonLiterals(closer), []
    for tool in tools:
        begin = lark.text(f"{bare_name(tool, _FUNCTION)}(")
        written = []
        for argument in arguments_of(tool):
            name = written_name(argument.name, r"[\w.\-]+", argument.place)
            value = spell_value(lark, language, argument.schema, argument.place)
            written.append((f"{lark.text(f'{name}=')} {value}", argument.is_required))
        calls.append(f"{begin} {in_order(lark, written, lark.text(', '))} {lark.text(')')}")
    return lark.one_of(calls)


class BareList(ToolFormat):
    """Python calls as a list at the start of the answer."""

    name = "bare_list"
    starts = ("[",)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        return _spell_list(lark, _spell_call(lark, tools, ""), parallel=parallel)

    def read(self, source: Source, opener: str) -> Step[None]:
        emit_calls(source, (yield from read_call_list(source)))


_BARE_LIST = BareList()


class PythonCalls(ToolFormat):
    """Python calls between markers."""

    def __init__(self, name: str, markers: Mapping[str, str], *, in_lines: bool = False) -> None:
        """`markers` has the end of a block by its start. `in_lines` is True if models write each
        call on a line of its own; else all are in a list."""
        self.name = name
        self._in_lines = in_lines
        self.openers = tuple(markers)
        self.orphans = tuple(markers.values())
        self._closers = markers

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        opener = lark.prefer(self.openers)
        closer = self._closers[opener]
        call = _spell_call(lark, tools, closer)
        if self._in_lines:
            line_end = lark.text("\n")
            line = f"{call} {line_end}"
            body = f"{line_end} {lark.many(line) if parallel else line}"
        else:
            body = _spell_list(lark, call, parallel=parallel)
        return f"{lark.text(opener)} {body} {lark.text(closer)}"

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
        emit_calls(source, (yield from self._rest(source, bracket + name, closer)))

    def _rest(self, source: Source, text: str, closer: str) -> Step[list[ParsedCall]]:
        """Reads the calls up to the end marker, which may also stand within a string, or be
        missing."""
        quotes = Quotes()
        tried_length = 0
        while True:
            piece, marker = yield from source.capture(closer, at_end=True)
            text += piece
            quotes.read(piece)
            # A quote that is not escaped leaves a string open, so the end may stand within what
            # looks like a string. Each try reads all of the text, so the next comes only when the
            # text has doubled.
            if not marker or not quotes.is_open or len(text) >= 2 * tried_length:
                tried_length = len(text)
                try:
                    return declared_calls(source, text)
                except NotPythonCalls:
                    if not marker or not quotes.is_open:
                        raise Malformed from None
            text += marker
            quotes.read(marker)


class MarkedOrBareCalls(AnyOf):
    """Reads and spells lists without markers as well; its models write both."""

    def __init__(self, form: PythonCalls) -> None:
        super().__init__(form.name, (form, _BARE_LIST))
        self._marked = form

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        ways = [_BARE_LIST.calls_grammar(lark, tools, parallel=parallel)]
        if any(map(lark.is_token, self._marked.openers)):
            ways.append(self._marked.calls_grammar(lark, tools, parallel=parallel))
        return lark.one_of(ways)


def with_bare_lists(form: PythonCalls) -> AnyOf:
    """Returns a format that reads lists without markers as well."""
    return AnyOf(form.name, (form, _BARE_LIST))


def _spell_list(lark: Lark, call: str, *, parallel: bool) -> str:
    calls = lark.many(call, lark.text(", ")) if parallel else call
    return f"{lark.text('[')} {calls} {lark.text(']')}"


def declared_calls(source: Source, text: str) -> list[ParsedCall]:
    """Returns the calls in the text, all of them of declared tools. Raises `Malformed` if a tool is
    not declared, and `NotPythonCalls` if the text is not a list of calls."""
    return [call_of(source, call.name, call.arguments) for call in read_calls(text)]


def read_call_list(source: Source) -> Step[list[ParsedCall]]:
    """Reads a list of calls from behind its `[`. Raises `Malformed`, at once if no declared name
    follows."""
    yield from source.space()
    name = yield from read_declared_name(source)
    return (yield from read_python(source, "[" + name))


def read_python(source: Source, begun: str) -> Step[list[ParsedCall]]:
    """Reads calls of declared tools up to the bracket that closes the one in `begun`, which was
    read before. Raises `Malformed`."""
    text = yield from read_brackets(source, begun)
    try:
        return declared_calls(source, text)
    except NotPythonCalls:
        raise Malformed from None


def read_brackets(source: Source, begun: str) -> Step[str]:
    """Reads up to the bracket that closes the one in `begun`, and returns all of the text. Raises
    `Malformed` if none does."""
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
