"""Solar Open: `<|think|>…<|end|>`, `<|begin|>assistant<|content|>…<|end|>`, and calls as
`<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{…}<|tool_call:end|>`."""

import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.json_calls import WORD, read_call
from node.parsing.calls.spelled_json import arguments_of, bare_name, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_BEGIN = "<|begin|>"
_THINK = "<|think|>"
_CONTENT = "<|content|>"
_CALLS = "<|tool_calls|>"
_CALL = "<|tool_call:begin|>"
_CALL_NAME = "<|tool_call:name|>"
_CALL_ARGUMENTS = "<|tool_call:args|>"
_CALL_END = "<|tool_call:end|>"
_END = "<|end|>"
_CALLS_END = "<|calls|>"
_ID = re.compile(r"[\w\-]*")


class Solar(Channels):
    name = "solar"
    opener = _THINK
    openers = (_CALLS, _CALL)
    begins = (_BEGIN, _THINK, _CONTENT, _CALLS, _CALL)
    ends = (_END, _CALLS_END)
    strict = frozenset((*begins, *ends))
    closing = _END
    header_begin = f"{_BEGIN}assistant"
    reasoning_header = _THINK
    answer_headers = (_CONTENT,)
    answer_ends = (_END,)

    def in_header(self, prompt_tail: str) -> bool:
        return _BEGIN in prompt_tail[max(prompt_tail.rfind(each) for each in self.ends) + 1 :]

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        marker = channel.header
        if marker in ("", _BEGIN):
            channel.header += yield from source.accept("assistant")
            marker = yield from source.expect(_THINK, _CONTENT, _CALLS, _CALL)
            channel.header += marker
        if marker == _THINK:
            channel.kind = PartKind.REASONING
        elif marker != _CONTENT:
            channel.target = ""

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        if not channel.header.endswith(_CALL):
            yield from source.space()
            if (yield from source.expect(_CALL, *self.ends)) != _CALL:
                return
        while True:
            yield from self._call(source)
            yield from source.space()
            if not (yield from source.accept(_CALL)):
                return

    def _call(self, source: Source) -> Step[None]:
        call_id = yield from source.run(_ID)
        yield from source.expect(_CALL_NAME)
        name = yield from source.run(WORD)
        yield from source.expect(_CALL_ARGUMENTS)
        (yield from read_call(source, name, _CALL_END, call_id=call_id)).end()

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        number = lark.regex("[A-Za-z0-9_-]{1,32}")
        calls = []
        for tool in tools:
            name = lark.text(f"{_CALL_NAME}{bare_name(tool, WORD)}{_CALL_ARGUMENTS}")
            call = (lark.text(_CALL), number, name, arguments_of(lark, tool), lark.text(_CALL_END))
            calls.append(" ".join(call))
        block = blocks(lark, lark.one_of(calls), parallel=parallel)
        begin = lark.text(self.header(_CALLS, prompt_tail))
        return f"{begin} {block} {lark.optional(lark.text(_CALLS_END))}"


SOLAR = Solar()

FAMILY = ModelFamily(
    layouts=(SOLAR,),
    tool_call_aliases={"solar": ("solar_open",)},
    reasoning_aliases={"solar": ("solar_open",)},
)
