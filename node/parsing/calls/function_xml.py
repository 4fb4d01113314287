"""Calls as `<function><name>f</name><arguments>{…}</arguments></function>`, which models write when
they lose their own format."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import NAME, read_call, read_declared_name
from node.parsing.calls.spelled_json import arguments_of, bare_name, between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class FunctionXml(ToolFormat):
    name = "function_xml"
    openers = ("<function>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from source.expect("<name>")
        yield from source.space()
        name = yield from read_declared_name(source)
        yield from source.space()
        yield from source.expect("</name>")
        yield from source.space()
        yield from source.expect("<arguments>", "<parameters>")
        ends = ("</arguments>", "</parameters>")
        call = yield from read_call(source, name, *ends, is_marked=False)
        yield from source.space()
        yield from source.expect("</function>")
        call.end()

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            name = between(lark, "<name>", lark.text(bare_name(tool, NAME)), "</name>")
            arguments = between(lark, "<arguments>", arguments_of(lark, tool), "</arguments>")
            body = f"{name} {lark.space()} {arguments}"
            calls.append(between(lark, "<function>", body, "</function>"))
        return blocks(lark, lark.one_of(calls), parallel=parallel)


FUNCTION_XML = FunctionXml()
