"""Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…} <|tool_call_end|>`, in
a section. The call's id is that of the model."""

import re
from collections.abc import Container, Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import read_call
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import arguments_of, bare_name, between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_CALL_END = "<|tool_call_end|>"
_ID = re.compile(r"[^<\n]*")
_COUNT = "0|[1-9][0-9]{0,3}"
_NUMBERED = re.compile(r"(.+):\d+")


def declared_name(call_id: str, declared: Container[str]) -> str:
    """Returns the function that an id such as `functions.f:0` names. Raises `Malformed` if none."""
    numbered = _NUMBERED.fullmatch(call_id)
    name = call_id if numbered is None else numbered[1]
    for known in (name.removeprefix("functions."), name, call_id):
        if known in declared:
            return known
    raise Malformed


class KimiK2(SectionCalls):
    name = "kimi_k2"
    sections = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
    section_ends = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
    calls = ("<|tool_call_begin|>",)
    openers = (*sections, *calls)
    orphans = (*section_ends, _CALL_END)

    def read_call(self, source: Source, begin: str) -> Step[None]:
        yield from source.space()
        call_id = (yield from source.run(_ID)).strip()
        name = declared_name(call_id, source.calls.schemas)
        yield from source.space()
        yield from source.expect("<|tool_call_argument_begin|>")
        sent_id = call_id if _NUMBERED.fullmatch(call_id) else ""
        (yield from read_call(source, name, _CALL_END, call_id=sent_id)).end()

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            # The model numbers its calls across messages.
            call_id = f"{lark.text(f'functions.{bare_name(tool, _ID)}:')} {lark.regex(_COUNT)}"
            arguments = arguments_of(lark, tool)
            begin = f"{lark.text(self.calls[0])} {call_id}"
            body = between(lark, "<|tool_call_argument_begin|>", arguments, _CALL_END)
            calls.append(f"{begin} {body}")
        block = blocks(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.sections[0], block, self.section_ends[0])


KIMI_K2 = KimiK2()

FAMILY = ModelFamily(
    tool_calls=(KIMI_K2,),
    tool_call_aliases={"kimi_k2": ("kimi", "moonshot")},
)
