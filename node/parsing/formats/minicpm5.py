"""MiniCPM5: `<function name="f"><param name="a">v</param></function>`, without an outer tag. Values
with markup are in `<![CDATA[` … `]]>`; others may contain entities."""

import re
from collections.abc import Callable, Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.invoke import read_value
from node.parsing.calls.spelled_json import bare_name, blocks
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import Argument
from node.parsing.format import ModelFamily, ToolFormat
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.python_literals import spell_repr
from node.parsing.values.raw_values import (
    RawText,
    in_order,
    is_simple,
    spell_json,
    spell_raw,
    spell_text,
    written_name,
)

_CDATA = "<![CDATA["
_CDATA_END = "]]>"
_CDATA_ENDS = Markers((_CDATA_END,))
_PARAM = "<param name="
_PARAM_END = "</param>"
_END = "</function>"
_NAME = re.compile(r"[^<>/\n]*")
_BARE_NAME = re.compile(r"[^<>/\n\s\"'](?:[^<>/\n]*[^<>/\n\s\"'])?")
"""Names that can be written between quotes unchanged."""
_PLAIN = RawText(_PARAM_END, ("<", "&", "\n"), in_json=(_PARAM_END,))
_IN_CDATA = RawText(_CDATA_END + _PARAM_END, (_CDATA_END,), in_json=("]>",))
_BLANKS = re.compile(r"[ \t\r]*")
_TAG = "<function name="
_ON_A_LINE = f"\n{_TAG}"
_ENTITY = re.compile(r"&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(lt|gt|amp|quot|apos));")
_LONGEST_ENTITY = len("&#1234567;")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


class MiniCpm5(ToolFormat):
    name = "minicpm5"
    openers = (_TAG, _ON_A_LINE)
    orphans = (_END,)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            # Some outputs have each tag on a line of its own.
            line_end = lark.optional(lark.text("\n"))
            begin = lark.text(f'{_TAG}"{bare_name(tool, _BARE_NAME)}">')
            written = [
                (f"{_spell_parameter(lark, argument)} {line_end}", argument.is_required)
                for argument in arguments_of(tool)
            ]
            calls.append(f"{begin} {line_end} {in_order(lark, written)} {lark.text(_END)}")
        return blocks(lark, lark.one_of(calls), parallel=parallel)

    def read(self, source: Source, opener: str) -> Step[None]:
        name = yield from self._read_name(source)
        before = "\n" if opener == _ON_A_LINE and not source.output.in_reasoning else ""
        # The newline before the tag is read with it, but is not part of the call.
        call = source.calls.open(name, before=before)
        arguments = BareArguments(call)
        if (yield from source.expect(">", "/>")) == ">":
            yield from source.space()
            mark = yield from source.expect(_PARAM, _END)
            while mark == _PARAM:
                key = yield from self._read_name(source)
                yield from source.expect(">")
                arguments.begin(key)
                mark = yield from self._read_value(source, arguments.write)
                arguments.end()
        if arguments.is_empty and source.output.has_text:
            yield from self._end_line(source, opener)
        arguments.close()
        call.end()

    def _end_line(self, source: Source, opener: str) -> Step[None]:
        """Raises `Malformed` unless the call is alone on its line: within a sentence it is text
        about calls."""
        yield from source.run(_BLANKS)
        if opener != _ON_A_LINE or (yield from source.peek()) not in ("", "\n"):
            raise Malformed

    def _read_name(self, source: Source) -> Step[str]:
        return (yield from source.run(_NAME)).strip().strip("\"'").strip()

    def _read_value(self, source: Source, emit: Callable[[str], None]) -> Step[str]:
        """Passes a value to `emit` as it arrives, and returns the tag that follows its end."""
        space = yield from source.space()
        if not (yield from source.accept(_CDATA)):
            if source.ends_within(_CDATA):
                raise Malformed
            entities = _Entities(emit)
            entities.write(space)
            mark = yield from read_value(source, (_PARAM_END,), (_PARAM, _END), entities.write)
            entities.end()
            return mark
        more = _CDATA
        while more:
            # Text that contains the end mark is written in several pieces.
            yield from source.pass_to(_CDATA_ENDS, emit)
            more = yield from source.accept(_CDATA)
        yield from source.space()
        yield from source.expect(_PARAM_END)
        yield from source.space()
        return (yield from source.expect(_PARAM, _END))


class _Entities:
    """Decodes the entities in text that arrives in pieces."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._buffered = ""
        """Text that may be the start of an entity."""

    def write(self, text: str) -> None:
        text = self._buffered + text
        at = text.rfind("&", max(0, len(text) - _LONGEST_ENTITY))
        end = at if at >= 0 and ";" not in text[at:] else len(text)
        self._buffered = text[end:]
        if end:
            self._emit(_ENTITY.sub(_entity, text[:end]))

    def end(self) -> None:
        if self._buffered:
            self._emit(self._buffered)


def _spell_parameter(lark: Lark, argument: Argument) -> str:
    """Writes strings without markup, numbers and words as they are."""
    name = written_name(argument.name, _BARE_NAME.pattern, argument.place)
    begin = lark.text(f'{_PARAM}"{name}">')
    if is_simple(argument):
        return f"{begin} {spell_json(lark, argument, _PLAIN)}"
    quoted = f"{lark.text(_CDATA)} {spell_raw(lark, argument, _IN_CDATA)}"
    ways = [spell_text(lark, argument, _PLAIN), quoted]
    if printed := spell_repr(lark, argument):
        ways.append(f"{printed} {lark.text(_PARAM_END)}")
    return f"{begin} {lark.one_of(list(filter(None, ways)))}"


def _entity(match: "re.Match[str]") -> str:
    if match[3]:
        return _NAMED[match[3]]
    code = int(match[1]) if match[1] else int(match[2], 16)
    # Surrogates and numbers that are no character stay as they are written.
    is_character = 0 < code < 0xD800 or 0xDFFF < code < 0x110000
    return chr(code) if is_character else match[0]


MINICPM5 = MiniCpm5()

FAMILY = ModelFamily(
    tool_calls=(MINICPM5,),
    tool_call_aliases={"minicpm5": ("minicpm",)},
)
