"""Parameters as `<parameter=a>v</parameter>`. A value is the bare text between its tags, which may
contain tags itself; its end tag may be missing."""

import re
from collections.abc import Callable
from typing import NamedTuple

from node.ipc.generate import ToolSchema
from node.parsing.coercion import Schema, declares
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import Argument
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.pieces import Pieces
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.python_literals import spell_repr
from node.parsing.values.raw_values import RawText, in_order, spell_raw, written_name

_NAME = re.compile(r"[^>\n<]*")
BARE_NAME = re.compile(r"[^>\n<\s\"'](?:[^>\n<]*[^>\n<\s\"'])?")
"""Names that can be written in a tag unchanged."""


class XmlTags(NamedTuple):
    parameter: str
    """The start of a parameter's tag, up to the name."""
    parameter_end: str
    ends: tuple[str, str]
    """The end of a call, and the end of all calls."""
    in_value: Markers
    """Markers that may end a value."""
    follows: tuple[str, ...]
    """Texts that may follow a call."""
    keeps_last_newline: bool
    """True if a value that did not begin with a newline keeps the newline before its end tag."""
    quote: str = ""
    """The quote that models write around names; may be empty."""


class _Begin(NamedTuple):
    """The start of a parameter within the text of an earlier value, whose end tag may be
    missing."""

    at: int
    """Start of its tag within that text."""
    end: int
    key: str


class _ValueText(NamedTuple):
    """The text behind a parameter's tag, up to a mark that certainly does not belong to the
    value."""

    text: str
    closed: bool
    """True if the value's own end tag came last; the text does not contain it."""
    mark: str
    key: str
    """Name of the parameter that follows, if one does."""
    begins: list[_Begin]


def read_parameters(source: Source, tags: XmlTags, call: OpenCall) -> Step[tuple[bool, str]]:
    """Reads the arguments of a call; returns (True if there are none, the tag that ended it).
    Raises `Malformed`."""
    arguments, schema = BareArguments(call), call.schema
    known: set[str] = set()
    mark = yield from source.expect(tags.parameter, *tags.ends)
    key = ""
    if mark == tags.parameter:
        key, _ = yield from _read_key(source)
        if not key:
            raise Malformed
    while mark == tags.parameter:
        arguments.begin(key)
        stream = _ValueStream(arguments.write)
        found = yield from _read_text(source, tags, schema, {*known, key}, stream)
        (_, first), *others = _values(key, found, tags)
        arguments.write(first[stream.length :])
        arguments.end()
        for name, value in others:
            arguments.add(name, value)
        known |= {key, *(name for name, _ in others)}
        mark, key = found.mark, found.key
    arguments.close()
    return arguments.is_empty, mark


def spell_parameters(lark: Lark, tool: ToolSchema, tags: XmlTags) -> str:
    """Returns the expression of a tool's arguments. Raises `UnsupportedConstraint`."""
    written = [
        (_spell_parameter(lark, each, tags), each.is_required) for each in arguments_of(tool)
    ]
    return in_order(lark, written)


def _spell_parameter(lark: Lark, argument: Argument, tags: XmlTags) -> str:
    name = written_name(argument.name, BARE_NAME.pattern, argument.place)
    line_end = "" if tags.keeps_last_newline else "\n"
    begin = f"{tags.parameter}{tags.quote}{name}{tags.quote}>{line_end}"
    # Within a value, these may be read as its end.
    forbidden = (tags.parameter_end, tags.ends[0], tags.parameter)
    without = r"\r?\n(.|\n)*" if tags.keeps_last_newline else r"(.|\n)*\r"
    closer = f"{line_end}{tags.parameter_end}\n"
    raw = RawText(closer, forbidden, (without,), in_json=forbidden)
    ways = [spell_raw(lark, argument, raw)]
    if tags.keeps_last_newline and not tags.quote and (printed := spell_repr(lark, argument)):
        # Templates of these models print values other than strings as Python does.
        ways.append(f"{printed} {lark.text(closer)}")
    return f"{lark.text(begin)} {lark.one_of(ways)}"


def unquoted(name: str) -> str:
    return name.strip().strip("\"'").strip()


def without_line_ends(text: str, *, last: bool = True) -> str:
    """Returns the value without one newline at each end, which separate it from its tags. Without
    `last`, the last newline is removed only if there is a first."""
    found = _without_first_line_end(text)
    begins, text = found != text, found
    if begins or last:
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    return text


def _without_first_line_end(text: str) -> str:
    return text[1 + (text[0] == "\r") :] if text.startswith(("\n", "\r\n")) else text


def _ends_a_line(text: str) -> bool:
    """True if the text behind begins a line, possibly indented."""
    return not text[text.rfind("\n") + 1 :].strip()


def _read_key(source: Source) -> Step[tuple[str, str]]:
    """Returns (name of a parameter, read to the end of its tag, or "" if it is not a tag; the text
    read)."""
    read = yield from source.run(_NAME)
    end = yield from source.accept(">")
    return unquoted(read) if end else "", read + end


class _ValueStream:
    """Emits the part of a value that certainly belongs to it, as it arrives."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self.length = 0
        self.text = Pieces()
        """All text of the value."""
        self._emit = emit
        self._buffered = ""
        """Newlines that may separate the value from its tags."""
        self._has_begun = False

    def write(self, text: str) -> None:
        self.text.add(text)
        text = self._buffered + text
        if not self._has_begun and text != "\r":
            self._has_begun = True
            text = _without_first_line_end(text)
        kept = text.removesuffix("\n").removesuffix("\r")
        self._buffered = text[len(kept) :]
        self.length += len(kept)
        self._emit(kept)


def _read_text(
    source: Source, tags: XmlTags, schema: Schema, known: set[str], stream: _ValueStream
) -> Step[_ValueText]:
    """Reads up to the last end tag before the next parameter or the function's end; without an end
    tag, up to that end. `known` are the parameters read before. The text up to the first mark is
    emitted."""
    mark = yield from source.pass_to(tags.in_value, stream.write)
    text = stream.text.take()
    begins: list[_Begin] = []
    while True:
        read, closed, key = mark, mark == tags.parameter_end, ""
        if closed:
            space = yield from source.space()
            mark = yield from source.accept(tags.parameter, *tags.ends)
            read += space + mark
        if mark == tags.parameter:
            key, name = yield from _read_key(source)
            read += name
        elif mark and not closed:
            mark, rest = yield from _read_end(source, tags)
            read += rest
            if mark:
                return _ValueText(text, closed, mark, key, begins)
        if mark and closed and (key or mark != tags.parameter):
            return _ValueText(text, closed, mark, key, begins)
        if key and key not in known and declares(schema, key) and _ends_a_line(text):
            begins.append(_Begin(len(text), len(text) + len(read), key))
            known.add(key)
        piece, mark = yield from source.capture_any(tags.in_value)
        text += read + piece


def _read_end(source: Source, tags: XmlTags) -> Step[tuple[str, str]]:
    """Reads behind the function's end tag and returns (the tag that ended the function, the text
    read). If the last value has no end tag, the function's end counts only if another call or
    nothing follows; else the result is ("", text read)."""
    read = yield from source.space()
    end = yield from source.accept(tags.ends[1])
    read += end + (yield from source.space())
    ahead = yield from source.peek(max(map(len, tags.follows)))
    ends = not ahead or ahead.startswith(tags.follows)
    return (end or tags.ends[0]) if ends else "", read


def _values(key: str, found: _ValueText, tags: XmlTags) -> list[tuple[str, str]]:
    """Returns the parameters in the text by name. There are several if others begin on lines of
    their own and have no end tag within the text that would make them a quotation."""
    values = []
    begun = 0
    for begin in _unclosed(found, tags):
        values.append((key, _bare(found.text[begun : begin.at], tags, closed=False)))
        key, begun = begin.key, begin.end
    values.append((key, _bare(found.text[begun:], tags, closed=found.closed)))
    return values


def _unclosed(found: _ValueText, tags: XmlTags) -> list[_Begin]:
    if not found.begins:
        return []
    text = found.text
    if not found.closed:
        # The last end tag belongs to the last value.
        text = text[: max(text.rfind(tags.parameter_end), 0)] or text
    by_position = {begin.at: begin for begin in found.begins}
    open_: list[int] = []
    for match in re.finditer(f"{re.escape(tags.parameter)}|{re.escape(tags.parameter_end)}", text):
        if match[0] == tags.parameter:
            open_.append(match.start())
        elif open_:
            open_.pop()
    return [by_position[at] for at in open_ if at in by_position]


def _bare(value: str, tags: XmlTags, *, closed: bool) -> str:
    last = -1 if closed else value.rfind(tags.parameter_end)
    if last >= 0:
        value = value[:last]
    return without_line_ends(value, last=not tags.keeps_last_newline)
