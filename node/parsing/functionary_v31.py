"""Calls of Functionary v3.1: `<function=f>{…}</function>`."""

from node.parsing.format import ToolFormat
from node.parsing.json_calls import read_arguments, read_declared_name
from node.parsing.source import Source, Step


class FunctionaryV31(ToolFormat):
    name = "functionary_v31"
    openers = ("<function=",)
    orphans = ("</function>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        name = yield from read_declared_name(source)
        yield from source.expect(">")
        source.call(name, (yield from read_arguments(source, "</function>")))


FUNCTIONARY_V31 = FunctionaryV31()
