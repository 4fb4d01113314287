"""Calls of Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}
<|tool_call_end|>`, in a section. The call's id is sent back as the model wrote it."""

import re
from collections.abc import Container

from node.parsing.json_calls import read_arguments
from node.parsing.sections import SectionCalls
from node.parsing.source import Malformed, Source, Step

_CALL_END = "<|tool_call_end|>"
_ID = re.compile(r"[^<\n]*")
_NUMBERED = re.compile(r"(.+):\d+")


def declared_name(call_id: str, declared: Container[str]) -> str:
    """The function that an id such as `functions.f:0` names. Raises `Malformed` if it is none."""
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
    blanks = tuple(zip(sections, section_ends, strict=True))
    orphans = (*section_ends, _CALL_END)

    def read_call(self, source: Source, begin: str) -> Step[None]:
        yield from source.space()
        call_id = (yield from source.run(_ID)).strip()
        name = declared_name(call_id, source.schemas)
        yield from source.space()
        yield from source.expect("<|tool_call_argument_begin|>")
        arguments = yield from read_arguments(source, name, _CALL_END)
        source.call(name, arguments, call_id if _NUMBERED.fullmatch(call_id) else "")


KIMI_K2 = KimiK2()
