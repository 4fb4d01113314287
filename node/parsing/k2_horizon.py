"""Calls of K2 Horizon: `<ifm|tool_call>f`, then pairs of keys and values, with or without types, or
the whole call as JSON, in a block. How hard it thinks shows in the tag of its reasoning."""

from node.parsing.arg_pairs import PairTags, read_pairs
from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import close_block, read_declared_name, read_marked_calls
from node.parsing.source import Source, Step

_BLOCK = "<ifm|tool_calls>"
_BLOCK_END = "</ifm|tool_calls>"
_CALL = "<ifm|tool_call>"
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


class K2Horizon(ToolFormat):
    name = "k2_horizon"
    openers = (_BLOCK, _CALL)
    orphans = (_BLOCK_END, _CALL_END)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener == _BLOCK:
            yield from source.space()
            if (yield from source.expect(_CALL, _BLOCK_END)) == _BLOCK_END:
                source.edge()
                return
        while True:
            yield from self._call(source)
            yield from source.space()
            if not (yield from source.accept(_CALL)):
                break
        yield from source.accept(_BLOCK_END)

    def _call(self, source: Source) -> Step[None]:
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            yield from read_marked_calls(source)
            yield from close_block(source, _CALL_END)
            return
        name = yield from read_declared_name(source)
        source.call(name, (yield from read_pairs(source, _TAGS, source.schemas[name])))


K2_HORIZON = K2Horizon()
