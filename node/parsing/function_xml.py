"""Calls as `<function><name>f</name><arguments>{…}</arguments></function>`, which models write that
lose their own format."""

from node.parsing.format import ToolFormat
from node.parsing.json_calls import read_arguments, read_declared_name
from node.parsing.source import Source, Step


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
        arguments = yield from read_arguments(source, name, "</arguments>", "</parameters>")
        yield from source.space()
        yield from source.expect("</function>")
        source.call(name, arguments)


FUNCTION_XML = FunctionXml()
