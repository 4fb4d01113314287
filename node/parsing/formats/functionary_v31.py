"""Calls of Functionary v3.1: `<function=f>{…}</function>`."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import read_function, spell_functions
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class FunctionaryV31(ToolFormat):
    name = "functionary_v31"
    openers = ("<function=",)
    orphans = ("</function>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from read_function(source)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        return spell_functions(lark, tools, parallel=parallel)


FUNCTIONARY_V31 = FunctionaryV31()

FAMILY = ModelFamily(
    tool_calls=(FUNCTIONARY_V31,),
    yields_to=("seed_oss",),
)
