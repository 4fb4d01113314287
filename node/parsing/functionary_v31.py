"""Calls of Functionary v3.1: `<function=f>{…}</function>`."""

from node.parsing.format import ToolFormat
from node.parsing.json_calls import read_function
from node.parsing.source import Source, Step


class FunctionaryV31(ToolFormat):
    name = "functionary_v31"
    openers = ("<function=",)
    orphans = ("</function>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from read_function(source)


FUNCTIONARY_V31 = FunctionaryV31()
