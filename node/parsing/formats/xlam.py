"""xLAM: calls as a JSON list, bare, in a code block, or in markers of other families.

The format has no markup of its own, so a list contains calls only if they name declared tools and
have no other keys than a call.
"""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import read_bare_calls
from node.parsing.calls.spelled_json import call_objects, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_CLOSERS = {
    "```json": "```",
    "```": "```",
    "[TOOL_CALLS]": "[/TOOL_CALLS]",
    "<tool_call>": "</tool_call>",
}
_THINK_END = "</think>"


class Xlam(ToolFormat):
    name = "xlam"
    openers = (*_CLOSERS, _THINK_END)
    never_blank = ("```json", "```", _THINK_END)
    starts = ("[",)
    orphans = ("</tool_call>",)
    spells_bare = True

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener == _THINK_END:
            yield from self._after_reasoning(source)
            return
        if opener != "[":
            yield from source.space()
            yield from source.expect("[")
        yield from read_bare_calls(source, "[")
        closer = _CLOSERS.get(opener)
        if closer is not None:
            yield from source.space()
            yield from source.accept(closer)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        return list_of(lark, call_objects(lark, tools), parallel=parallel)

    def _after_reasoning(self, source: Source) -> Step[None]:
        """Reads calls behind reasoning that was not parsed and is therefore content; the answer
        begins behind it."""
        yield from source.space()
        yield from source.expect("[")
        yield from read_bare_calls(source, "[", before=_THINK_END)


XLAM = Xlam()

FAMILY = ModelFamily(
    tool_calls=(XLAM,),
    is_marked=False,
)
