"""Calls of Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}
<|tool_call_end|>`, in a section. The call's id is sent back as the model wrote it."""

import re
from collections.abc import Container

from node.parsing.format import ToolFormat
from node.parsing.json_calls import read_arguments
from node.parsing.source import Malformed, Source, Step

_SECTION = "<|tool_calls_section_begin|>"
_SECTION_END = "<|tool_calls_section_end|>"
_CALL = "<|tool_call_begin|>"
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


class KimiK2(ToolFormat):
    name = "kimi_k2"
    openers = (_SECTION, "<|tool_call_section_begin|>", _CALL)
    orphans = (_SECTION_END, "<|tool_call_section_end|>", _CALL_END)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener != _CALL:
            yield from source.space()
            begin = yield from source.expect(_CALL, *self.orphans[:2])
            if begin != _CALL:
                source.edge()
                return
        while True:
            yield from self._call(source)
            yield from source.space()
            if not (yield from source.accept(_CALL)):
                break
        yield from source.accept(*self.orphans[:2])

    def _call(self, source: Source) -> Step[None]:
        yield from source.space()
        call_id = (yield from source.run(_ID)).strip()
        name = declared_name(call_id, source.schemas)
        yield from source.space()
        yield from source.expect("<|tool_call_argument_begin|>")
        arguments = yield from read_arguments(source, _CALL_END)
        source.call(name, arguments, call_id if _NUMBERED.fullmatch(call_id) else "")


KIMI_K2 = KimiK2()
