"""Parameters as `<parameter=a>v</parameter>`, whose values are bare text: whatever stands between
the tags, which may hold tags itself. The end of a value may be missing."""

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
"""Names that stand in a tag as they are."""


class XmlTags(NamedTuple):
    parameter: str
    """What the tag of one begins with, up to the name."""
    parameter_end: str
    ends: tuple[str, str]
    """What ends a call, and what ends all of them."""
    in_value: Markers
    """What may end a value."""
    follows: tuple[str, ...]
    """What may follow a call."""
    keeps_last_newline: bool
    """A value that did not begin with a line end keeps that before its end tag."""
    quote: str = ""
    """What models write around names."""


class _Begin(NamedTuple):
    """Of a parameter, where the value of the one before it may not have been ended."""

    at: int
    """Where its tag begins in that value's text, and where it ends."""
    end: int
    key: str


class _Text(NamedTuple):
    """What follows the tag of a parameter, up to what is surely no value."""

    text: str
    closed: bool
    """An end tag of its own came last, which is not in the text."""
    mark: str
    key: str
    """Name of the next parameter, if it is one that follows."""
    begins: list[_Begin]


def read_parameters(source: Source, tags: XmlTags, call: OpenCall) -> Step[tuple[bool, str]]:
    """Reads the arguments of a call: (whether there are none, the tag that ended it). Raises
    `Malformed`."""
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
        told = _Told(arguments.take)
        found = yield from _read_text(source, tags, schema, {*known, key}, told)
        (_, first), *others = _values(key, found, tags)
        arguments.take(first[told.length :])
        arguments.end()
        for name, value in others:
            arguments.add(name, value)
        known |= {key, *(name for name, _ in others)}
        mark, key = found.mark, found.key
    arguments.close()
    return arguments.is_empty, mark


def spell_parameters(lark: Lark, tool: ToolSchema, tags: XmlTags) -> str:
    """The expression of a tool's arguments. Raises `NotHeld`."""
    written = [
        (_spell_parameter(lark, each, tags), each.is_required) for each in arguments_of(tool)
    ]
    return in_order(lark, written)


def _spell_parameter(lark: Lark, argument: Argument, tags: XmlTags) -> str:
    name = written_name(argument.name, BARE_NAME.pattern, argument.place)
    line_end = "" if tags.keeps_last_newline else "\n"
    begin = f"{tags.parameter}{tags.quote}{name}{tags.quote}>{line_end}"
    # Within a value these may be read as the end of it.
    forbidden = (tags.parameter_end, tags.ends[0], tags.parameter)
    without = r"\r?\n(.|\n)*" if tags.keeps_last_newline else r"(.|\n)*\r"
    closer = f"{line_end}{tags.parameter_end}\n"
    raw = RawText(closer, forbidden, (without,), in_json=forbidden)
    ways = [spell_raw(lark, argument, raw)]
    if tags.keeps_last_newline and not tags.quote and (printed := spell_repr(lark, argument)):
        # Templates of these print what is no string.
        ways.append(f"{printed} {lark.text(closer)}")
    return f"{lark.text(begin)} {lark.one_of(ways)}"


def unquoted(name: str) -> str:
    return name.strip().strip("\"'").strip()


def without_line_ends(text: str, *, last: bool = True) -> str:
    """The value without the line ends that part it from its tags: one at each end; the last only
    if there is a first, where not `last`."""
    found = _without_first_line_end(text)
    begins, text = found != text, found
    if begins or last:
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    return text


def _without_first_line_end(text: str) -> str:
    return text[1 + (text[0] == "\r") :] if text.startswith(("\n", "\r\n")) else text


def _ends_a_line(text: str) -> bool:
    """Whether what follows begins a line, or is indented on one."""
    return not text[text.rfind("\n") + 1 :].strip()


def _read_key(source: Source) -> Step[tuple[str, str]]:
    """(name of a parameter up to the end of its tag, "" if it is no tag; what was read)."""
    read = yield from source.run(_NAME)
    end = yield from source.accept(">")
    return unquoted(read) if end else "", read + end


class _Told:
    """Tells of a value what is surely its own, as it comes."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.length = 0
        self.text = Pieces()
        """All of it that came."""
        self._tell = tell
        self._held = ""
        """Line ends that may part the value from its tags."""
        self._has_begun = False

    def take(self, text: str) -> None:
        self.text.add(text)
        text = self._held + text
        if not self._has_begun and text != "\r":
            self._has_begun = True
            text = _without_first_line_end(text)
        kept = text.removesuffix("\n").removesuffix("\r")
        self._held = text[len(kept) :]
        self.length += len(kept)
        self._tell(kept)


def _read_text(
    source: Source, tags: XmlTags, schema: Schema, known: set[str], told: _Told
) -> Step[_Text]:
    """Up to the last end tag before the next parameter or the function's end; without one, up to
    that end. `known`: the parameters that were there. Tells the text up to the first mark."""
    mark = yield from source.pass_to(tags.in_value, told.take)
    text = told.text.take()
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
                return _Text(text, closed, mark, key, begins)
        if mark and closed and (key or mark != tags.parameter):
            return _Text(text, closed, mark, key, begins)
        if key and key not in known and declares(schema, key) and _ends_a_line(text):
            begins.append(_Begin(len(text), len(text) + len(read), key))
            known.add(key)
        piece, mark = yield from source.capture_any(tags.in_value)
        text += read + piece


def _read_end(source: Source, tags: XmlTags) -> Step[tuple[str, str]]:
    """(the tag that ended the function, what was read) behind its end tag, if that is one although
    the last value has none: then another call follows, or nothing. Else ("", …)."""
    read = yield from source.space()
    end = yield from source.accept(tags.ends[1])
    read += end + (yield from source.space())
    ahead = yield from source.peek(max(map(len, tags.follows)))
    ends = not ahead or ahead.startswith(tags.follows)
    return (end or tags.ends[0]) if ends else "", read


def _values(key: str, found: _Text, tags: XmlTags) -> list[tuple[str, str]]:
    """The parameters that the text holds, by name: more than the one it began with where others
    begin on lines of their own, and have no end tag within it that would make them a quotation."""
    values = []
    begun = 0
    for begin in _unclosed(found, tags):
        values.append((key, _bare(found.text[begun : begin.at], tags, closed=False)))
        key, begun = begin.key, begin.end
    values.append((key, _bare(found.text[begun:], tags, closed=found.closed)))
    return values


def _unclosed(found: _Text, tags: XmlTags) -> list[_Begin]:
    if not found.begins:
        return []
    text = found.text
    if not found.closed:
        # The last end tag is that of the last value.
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
