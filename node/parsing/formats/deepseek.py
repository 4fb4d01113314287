"""Calls of DeepSeek V3, R1 and V3.1.

V3.1 writes `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`. V3 and R1 write the word
`function` in place of the name, and behind the separator the name and the arguments in a JSON
fence. The text behind the separator shows which of them it is. Some checkpoints spell the markers
in other characters.
"""

from collections.abc import Sequence
from itertools import product

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import WORD, close_block, read_call
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import arguments_of, bare_name, between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


def _spellings(words: str) -> tuple[str, ...]:
    return tuple(
        f"<{bar}{gap.join(words.split())}{bar}>"
        for bar, gap in product("\uff5c|", ("\u2581", "_", " ", "\\_"))
    )


_CALL_END = _spellings("tool call end")
_SEPARATOR = _spellings("tool sep")
_FENCE = "```"


class DeepSeek(SectionCalls):
    sections = _spellings("tool calls begin") + _spellings("tool calls")
    section_ends = _spellings("tool calls end")
    calls = _spellings("tool call begin")
    openers = (*sections, *calls)
    orphans = (*section_ends, *_CALL_END)

    def __init__(self, name: str, *, in_fence: bool) -> None:
        """With `in_fence`, models write the arguments in a JSON fence; both spellings are read."""
        self.name = name
        self._in_fence = in_fence

    def read_call(self, source: Source, begin: str) -> Step[None]:
        yield from source.space()
        name = yield from source.run(WORD)
        yield from source.space()
        yield from source.expect(*_SEPARATOR)
        yield from source.space()
        fence_end = ""
        if (yield from source.peek()) not in ("{", "<"):
            if name != "function":
                raise Malformed
            name = yield from source.run(WORD)
            yield from source.space()
            fence_end = _FENCE if (yield from source.accept("```json", _FENCE)) else ""
        ends = (fence_end,) if fence_end else _CALL_END
        call = yield from read_call(source, name, *ends)
        if fence_end:
            yield from close_block(source, *_CALL_END)
        call.end()

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        begin, separator, end = map(lark.prefer, (self.calls, _SEPARATOR, _CALL_END))
        calls = []
        for tool in tools:
            name, arguments = bare_name(tool, WORD), arguments_of(lark, tool)
            if self._in_fence:
                head = f"{begin}function{separator}{name}\n{_FENCE}json"
                calls.append(between(lark, head, arguments, f"\n{_FENCE}{end}"))
            else:
                calls.append(between(lark, f"{begin}{name}{separator}", arguments, end))
        block = blocks(lark, lark.one_of(calls), parallel=parallel)
        section_end = lark.prefer(self.section_ends)
        return between(lark, lark.prefer(self.sections), block, section_end)


DEEPSEEK_V3 = DeepSeek("deepseek_v3", in_fence=True)
"""DeepSeek V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, then the arguments in a JSON
fence. Also reads V3.1's calls."""
DEEPSEEK_V31 = DeepSeek("deepseek_v31", in_fence=False)
"""DeepSeek V3.1: `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`. Also
reads V3's calls."""

FAMILY = ModelFamily(
    tool_calls=(DEEPSEEK_V3, DEEPSEEK_V31),
    tool_call_aliases={
        "deepseek_v3": ("deepseek", "deepseek_r1", "deepseek_r1_0528", "deepseekv3"),
        "deepseek_v31": ("deepseekv31",),
    },
)
