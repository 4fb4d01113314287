"""Hunyuan 3: `<tool_call:opensource>f<tool_sep:opensource>`, then pairs of keys and values or a
JSON object, in a block. The suffix of the tags depends on the build."""

import re
from collections.abc import Sequence
from functools import lru_cache

from node.ipc.generate import ToolSchema
from node.parsing.calls.arg_pairs import PairTags, read_pairs, spell_call
from node.parsing.calls.json_calls import read_call, read_declared_name
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ReasoningFormat, ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_SUFFIX = re.compile(r"[\w.\-]*")


class _Suffixed(SectionCalls):
    """Calls in tags with one suffix."""

    name = "hy_v3"

    def __init__(self, suffix: str) -> None:
        self.sections = (f"<tool_calls{suffix}>",)
        self.section_ends = (f"</tool_calls{suffix}>",)
        self.calls = (f"<tool_call{suffix}>",)
        self._call_ends = (f"</tool_call{suffix}>", f"<end_of_tool_call{suffix}>")
        self.orphans = (*self.section_ends, *self._call_ends)
        self._separator = f"<tool_sep{suffix}>"
        self._tags = PairTags(
            f"<arg_key{suffix}>",
            f"</arg_key{suffix}>",
            f"<arg_value{suffix}>",
            f"</arg_value{suffix}>",
            self._call_ends,
        )

    def read_call(self, source: Source, begin: str) -> Step[None]:
        yield from source.space()
        name = yield from read_declared_name(source)
        yield from source.space()
        if (yield from source.expect(self._separator, *self._call_ends)) != self._separator:
            source.calls.emit(name, {})
            return
        yield from source.space()
        if (yield from source.peek()) == "{":
            (yield from read_call(source, name, *self._call_ends)).end()
            return
        yield from read_pairs(source, self._tags, name)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        begin, separator = self.calls[0], self._separator
        calls = [spell_call(lark, each, self._tags, begin, separator=separator) for each in tools]
        body = blocks(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.sections[0], body, self.section_ends[0])


_suffixed = lru_cache(maxsize=64)(_Suffixed)
_USUAL = (":opensource", "")


class HyV3(ToolFormat):
    name = "hy_v3"
    openers = ("<tool_calls:", "<tool_calls>", "<tool_call:", "<tool_call>")
    blank_ends = ("opensource></tool_calls:opensource>",)
    orphans = tuple(orphan for suffix in _USUAL for orphan in _suffixed(suffix).orphans)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        sections = {f"<tool_calls{suffix}>": suffix for suffix in _USUAL}
        suffix = sections[lark.prefer(tuple(sections))]
        return _suffixed(suffix).calls_grammar(lark, tools, parallel=parallel)

    def read(self, source: Source, opener: str) -> Step[None]:
        suffix = ""
        if opener.endswith(":"):
            suffix = ":" + (yield from source.run(_SUFFIX))
            yield from source.expect(">")
        yield from _suffixed(suffix).read(source, f"{opener[:-1]}{suffix}>")


HY_V3 = HyV3()
HY_V3_REASONING = ReasoningFormat(
    "hy_v3",
    tuple(f"<think{suffix}>" for suffix in _USUAL),
    tuple(f"</think{suffix}>" for suffix in _USUAL),
)

FAMILY = ModelFamily(
    tool_calls=(HY_V3,),
    reasoning=(HY_V3_REASONING,),
    tool_call_aliases={"hy_v3": ("hy3",)},
    reasoning_aliases={"hy_v3": ("hy3",)},
)
