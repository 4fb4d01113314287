"""Command A, Command R7B: `<|START_THINKING|>…<|END_THINKING|>`, then `<|START_RESPONSE|>` or
`<|START_TEXT|>`, or calls as a JSON list behind `<|START_ACTION|>`.

Citation marks, `<co>span</co: 0:[1]>`, are removed; the cited span stays.
"""

import json
import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.json_calls import read_marked_calls
from node.parsing.calls.spelled_json import arguments_of, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_THINKING = "<|START_THINKING|>"
_ACTION = "<|START_ACTION|>"
_ANSWERS = ("<|START_RESPONSE|>", "<|START_TEXT|>")
_CITED = "<co>"
_CITED_END = "</co:"
_SOURCES = re.compile(r"[\d:,\[\] ]*")


class CommandR(Channels):
    name = "command_r"
    opener = _THINKING
    openers = (_ACTION,)
    begins = (_THINKING, _ACTION, *_ANSWERS)
    ends = (
        "<|END_THINKING|>",
        "<|END_ACTION|>",
        "<|END_RESPONSE|>",
        "<|END_TEXT|>",
        "<|END_OF_TURN_TOKEN|>",
    )
    inner_markers = (_CITED,)
    strict = frozenset((*begins, *ends))
    closing = "<|END_THINKING|>"
    reasoning_header = _THINKING
    answer_headers = _ANSWERS
    answer_ends = ("<|END_RESPONSE|>", "<|END_TEXT|>")

    def __init__(self) -> None:
        super().__init__()
        self._cited = Markers((_CITED_END, _CITED, *self.begins, *self.ends))

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        yield from ()
        if not channel.header:
            raise Malformed
        if channel.header == _THINKING:
            channel.kind = PartKind.REASONING
        elif channel.header == _ACTION:
            channel.target = ""

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        yield from source.space()
        yield from read_marked_calls(source)
        yield from source.space()

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        calls = list_of(lark, lark.one_of([_call(lark, tool) for tool in tools]), parallel=parallel)
        return f"{lark.text(_ACTION)} {calls} {lark.text('<|END_ACTION|>')}"

    def read_inner_marker(self, source: Source, marker: str, kind: PartKind) -> Step[None]:
        yield from source.attempt(marker, self._citation(source, kind), kind)

    def _citation(self, source: Source, kind: PartKind) -> Step[None]:
        span, end = yield from source.capture_any(self._cited)
        if end != _CITED_END:
            raise Malformed
        yield from source.run(_SOURCES)
        yield from source.expect(">")
        source.output.emit(kind, span)


def _call(lark: Lark, tool: ToolSchema) -> str:
    space, number = lark.space(), lark.regex("[0-9]{1,3}")
    begin = (lark.text("{"), space, lark.text('"tool_call_id": "'), number, lark.text('", '))
    name = lark.text(f'"tool_name": {json.dumps(tool.name, ensure_ascii=False)}, "parameters": ')
    return " ".join((*begin, name, arguments_of(lark, tool), space, lark.text("}")))


COMMAND_R = CommandR()

FAMILY = ModelFamily(
    layouts=(COMMAND_R,),
    tool_call_aliases={"command_r": ("cohere", "cohere_command3", "cohere_command4", "north")},
    reasoning_aliases={"command_r": ("cohere", "cohere_command3", "cohere_command4", "north")},
)
