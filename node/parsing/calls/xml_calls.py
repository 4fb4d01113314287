"""Calls as `<function=f><parameter=a>v</parameter></function>` in a tag: Qwen3-Coder, Qwen3.5,
Nemotron 3, MiMo, Step 3.5, Seed-OSS; with other tag names MiniMax M2 and more.

The outer tag may be missing. A call without it and without arguments counts only on a line of its
own; within a sentence it is text about calls.
"""

import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_arguments import read_json_arguments
from node.parsing.calls.spelled_json import bare_name, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.xml_values import (
    BARE_NAME,
    XmlTags,
    read_parameters,
    spell_parameters,
    unquoted,
)

_NAME = re.compile(r"[^>\n<]*")
_TEXT = re.compile(r"[^<\n]*")
_TEXT_LINES = 8
"""Most lines of text before a call within the tag. The text is buffered until the call comes, so it
must be short."""
_BLANKS = re.compile(r"[ \t\r]*")


class XmlCalls(ToolFormat):
    """Calls in one set of tags."""

    def __init__(
        self,
        name: str,
        wrapper: str,
        *,
        function: str = "<function=",
        parameter: str = "<parameter=",
        keeps_last_newline: bool = False,
        quote: str = "",
    ) -> None:
        """`function` and `parameter` are the starts of their tags, up to the name. With
        `keeps_last_newline`, the newline before an end tag belongs to a value that did not begin
        with one. `quote` is what models write around names; with it, one outer tag contains all
        calls."""
        self.name = name
        self._on_a_line = f"\n{function}"
        self.openers = (wrapper, function, self._on_a_line)
        self._wrapper = wrapper
        self._wrapper_end = f"</{wrapper[1:]}"
        self._function = function
        self._function_end = _end_of(function)
        self._tags = XmlTags(
            parameter,
            _end_of(parameter),
            (self._function_end, self._wrapper_end),
            Markers((_end_of(parameter), self._function_end, parameter)),
            (wrapper, function),
            keeps_last_newline,
            quote,
        )
        self.orphans = (self._wrapper_end, self._function_end)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        quote = self._tags.quote
        calls = []
        for tool in tools:
            name = f"{quote}{bare_name(tool, BARE_NAME)}{quote}"
            begin, end = f"{self._function}{name}>\n", f"{self._function_end}\n"
            body = spell_parameters(lark, tool, self._tags)
            calls.append(f"{lark.text(begin)} {body} {lark.text(end)}")
        call = lark.one_of(calls)
        inner = lark.many(call) if parallel and quote else call
        begin, end = f"{self._wrapper}\n", self._wrapper_end
        block = f"{lark.text(begin)} {inner} {lark.text(end)}"
        return blocks(lark, block, parallel=parallel and not quote)

    def read(self, source: Source, opener: str) -> Step[None]:
        before = ""
        if opener == self._wrapper:
            yield from source.space()
            if (yield from source.peek()) in ("{", "["):
                yield from self.read_json(source)
                return
            before = yield from self._read_before(source)
        mark: str | None = self._function
        while mark == self._function:
            begin = source.position - len(mark)
            call, mark = yield from self._read_function(source, opener, before)
            if call is None:
                before += source.since(begin)
            else:
                call.end()
                before = ""
            if mark != self._wrapper_end:
                mark = yield from source.maybe(self._read_next(source, opener))
        if before:
            raise Malformed

    def read_json(self, source: Source) -> Step[None]:
        """Reads a body of the outer tag that is JSON; by default there is none."""
        raise Malformed
        yield

    def _read_before(self, source: Source) -> Step[str]:
        """Reads the text before a call, within the tag, and the start of the call."""
        before, lines = "", 1
        while True:
            before += yield from source.run(_TEXT)
            mark = yield from source.accept(self._function, self._wrapper_end, self._wrapper)
            if mark == self._function:
                return before
            char = yield from source.peek()
            lines += char == "\n"
            if mark or not char or lines > _TEXT_LINES:
                raise Malformed
            before += yield from source.expect(char)

    def _read_next(self, source: Source, opener: str) -> Step[str]:
        """Reads the tag that continues the block, or ends it."""
        yield from source.space()
        ends = (self._function, self._wrapper_end)
        if opener != self._wrapper:
            return (yield from source.expect(*ends))
        mark = yield from source.accept(*ends)
        if mark:
            return mark
        rest = yield from source.run(_TEXT)
        yield from source.expect(self._wrapper_end)
        source.output.emit_beside(rest)
        return self._wrapper_end

    def _read_function(
        self, source: Source, opener: str, before: str
    ) -> Step[tuple[OpenCall | None, str]]:
        """Returns (the call whose name comes next, the tag that ended it). The call is None if its
        tool is not declared: then it is text beside other calls in the same tag. `before` is
        emitted before the call."""
        name = unquoted((yield from source.run(_NAME)))
        is_declared = name in source.calls.schemas or opener != self._wrapper
        # The newline before the tag is read with it, but is not part of the call.
        line_end = "\n" if opener == self._on_a_line and not source.output.in_reasoning else ""
        call = OpenCall(source.calls, name, {})
        if is_declared:
            call = source.calls.open(name, before=line_end + before)
        if not (yield from source.accept(">")) and (yield from source.peek()) != "\n":
            raise Malformed
        yield from source.space()
        is_empty, mark = yield from self._read_arguments(source, call)
        if is_empty and opener != self._wrapper and source.output.has_text:
            if opener != self._on_a_line or mark != self._function_end:
                raise Malformed
            yield from source.run(_BLANKS)
            if (yield from source.peek()) not in ("", "\n"):
                raise Malformed
        return call if is_declared else None, mark

    def _read_arguments(self, source: Source, call: OpenCall) -> Step[tuple[bool, str]]:
        """Returns (True if there are no arguments, the tag that ended them)."""
        if (yield from source.peek()) != "{":
            return (yield from read_parameters(source, self._tags, call))
        yield from read_json_arguments(source, call)
        yield from source.space()
        return call.is_empty, (yield from source.expect(*self._tags.ends))


def _end_of(tag: str) -> str:
    """Returns the end tag of a tag with this begin."""
    return f"</{re.split('[= ]', tag[1:])[0]}>"
