"""K2 Horizon: `<ifm|tool_call>f`, then pairs of keys and values, with or without types, or the
whole call as JSON, in a block. The tag of its reasoning depends on the effort."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.arg_pairs import PairTags, read_pairs, spell_call
from node.parsing.calls.json_calls import close_block, read_declared_name, read_marked_calls
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ReasoningFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_CALL_END = "</ifm|tool_call>"
_TAGS = PairTags(
    "<ifm|arg_key>",
    "</ifm|arg_key>",
    "<ifm|arg_value>",
    "</ifm|arg_value>",
    (_CALL_END,),
    "<ifm|arg_type>",
    "</ifm|arg_type>",
)
_EFFORTS = ("think", "think_fast", "think_faster")

K2_HORIZON_REASONING = ReasoningFormat(
    "k2_horizon",
    tuple(f"<ifm|{effort}>" for effort in _EFFORTS),
    tuple(f"</ifm|{effort}>" for effort in _EFFORTS),
)


class K2Horizon(SectionCalls):
    name = "k2_horizon"
    sections = ("<ifm|tool_calls>",)
    section_ends = ("</ifm|tool_calls>",)
    calls = ("<ifm|tool_call>",)
    openers = (*sections, *calls)
    orphans = (*section_ends, _CALL_END)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = [spell_call(lark, tool, _TAGS, self.calls[0]) for tool in tools]
        body = blocks(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.sections[0], body, self.section_ends[0])

    def read_call(self, source: Source, begin: str) -> Step[None]:
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            yield from read_marked_calls(source)
            yield from close_block(source, _CALL_END)
            return
        name = yield from read_declared_name(source)
        yield from read_pairs(source, _TAGS, name)


K2_HORIZON = K2Horizon()

FAMILY = ModelFamily(
    tool_calls=(K2_HORIZON,),
    reasoning=(K2_HORIZON_REASONING,),
    tool_call_aliases={"k2_horizon": ("k2_v3",)},
    reasoning_aliases={"k2_horizon": ("k2_v3",)},
)
