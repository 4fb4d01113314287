"""Calls as models write them when they lose their own format: `[Calling tool: f({…})]`,
`[Calling tool="f" a="v"]` and `[TOOL_CALL]…[/TOOL_CALL]`.

Models learn this from servers that keep the history as text. Only declared tools are called this
way; any other such text is content.
"""

import re
from collections.abc import Sequence
from typing import Any

from node.ipc.generate import ToolSchema
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.function_xml import FUNCTION_XML
from node.parsing.calls.json_calls import NAME, close_block, read_declared_name, read_object
from node.parsing.calls.json_members import read_members, read_string
from node.parsing.calls.key_values import read_key_values, read_loose_value
from node.parsing.calls.python_blocks import read_python
from node.parsing.calls.spelled_json import arguments_of, bare_name, between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.parsed_calls import emit_calls, json_call
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_BARE = re.compile(r"[^\s\[\]{}]*")
_LINE = re.compile(r"[^\n{}]*")
_TAG = "[TOOL_CALL]"
_TAG_END = "[/TOOL_CALL]"


class Bracket(ToolFormat):
    name = "bracket"
    openers = ("[Calling tool:", "[Calling tool=", _TAG)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener == _TAG:
            yield from source.space()
            yield from source.either(self._json(source), self._arrows(source))
            yield from close_block(source, _TAG_END)
        elif opener.endswith("="):
            yield from self._attributes(source)
        else:
            yield from self._called(source)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = [
            between(
                lark,
                f"[Calling tool: {bare_name(tool, NAME)}(",
                arguments_of(lark, tool),
                ")]",
            )
            for tool in tools
        ]
        return blocks(lark, lark.one_of(calls), parallel=parallel)

    def _called(self, source: Source) -> Step[None]:
        """Reads `f({"a": "v"})]`, or the same with arguments in Python."""
        yield from source.space()
        name = yield from read_declared_name(source)
        yield from source.space()
        begun = name + (yield from source.expect("("))
        yield from source.space()
        if (yield from source.peek()) == "{":
            arguments = yield from read_object(source)
            yield from source.space()
            yield from source.expect(")")
            yield from self._end(source)
            source.calls.emit(name, arguments)
        else:
            calls = yield from read_python(source, begun)
            yield from self._end(source)
            emit_calls(source, calls)

    def _attributes(self, source: Source) -> Step[None]:
        """Reads `"f" a="v" n=1]`."""
        quoted = (yield from source.peek()) == '"'
        name = yield from (read_string(source) if quoted else read_declared_name(source))
        schema = source.calls.declared_schema(name)
        source.calls.emit(name, (yield from read_key_values(source, schema, _BARE, "]")))

    def _json(self, source: Source) -> Step[None]:
        source.calls.emit(*json_call(source, (yield from read_members(source))))

    def _arrows(self, source: Source) -> Step[None]:
        """Reads `{tool => "f", args => {--a "v"}}`, with one argument a line."""
        yield from source.expect("{")
        yield from self._arrow(source, "tool")
        name = yield from read_string(source)
        schema = source.calls.declared_schema(name)
        arguments: dict[str, Any] = {}
        yield from source.space()
        if (yield from source.accept(",")):
            yield from self._arrow(source, "args")
            yield from source.expect("{")
            while True:
                yield from source.space()
                if (yield from source.expect("--", "}")) == "}":
                    break
                key = yield from source.run(NAME)
                yield from source.space()
                arguments[key] = yield from read_loose_value(source, schema, key, _LINE)
        yield from source.space()
        yield from source.expect("}")
        source.calls.emit(name, arguments)

    def _arrow(self, source: Source, key: str) -> Step[None]:
        yield from source.space()
        yield from source.expect(key)
        yield from source.space()
        yield from source.expect("=>")
        yield from source.space()

    def _end(self, source: Source) -> Step[None]:
        yield from source.space()
        if not (yield from source.accept("]")) and not source.at_end:
            raise Malformed


BRACKET = Bracket()


def with_recovery(form: ToolFormat) -> ToolFormat:
    """Returns a format that also reads calls which a model wrote in brackets or as XML in place of
    its own spelling."""
    return AnyOf(form.name, (form, BRACKET, FUNCTION_XML))
