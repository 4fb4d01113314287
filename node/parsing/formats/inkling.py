"""Inkling: messages of typed blocks, `<|message_model|><|content_thinking|>… <|end_message|>`. A
call is `{"name": …, "args": {…}}`."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.json_calls import WORD, read_marked_calls
from node.parsing.calls.spelled_json import bare_name, call_object
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_MODEL = "<|message_model|>"
_THINKING = "<|content_thinking|>"
_TEXT = "<|content_text|>"
_CALL = "<|content_invoke_tool_json|>"
_END = "<|end_message|>"
_KINDS = (_THINKING, _TEXT, _CALL, "<|content_invoke_tool_text|>", "<|content_tool_error|>")


class Inkling(Channels):
    name = "inkling"
    opener = _THINKING
    openers = (_CALL,)
    begins = (_MODEL, *_KINDS)
    ends = (_END, "<|content_model_end_sampling|>")
    strict = frozenset((*begins, *ends))
    closing = _END
    header_begin = _MODEL
    reasoning_header = _THINKING
    answer_headers = (_TEXT,)
    answer_ends = (_END,)

    def in_header(self, prompt_tail: str) -> bool:
        return _MODEL in prompt_tail[max(prompt_tail.rfind(each) for each in self.ends) + 1 :]

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        marker = channel.header
        if marker not in _KINDS:
            # The name of the called function may stand here.
            channel.header += yield from source.run(WORD)
            marker = yield from source.expect(*_KINDS)
            channel.header += marker
        if marker == _THINKING:
            channel.kind = PartKind.REASONING
        elif marker == _CALL:
            channel.target = ""

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        yield from source.space()
        yield from read_marked_calls(source)
        yield from source.space()

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        return (_CALL, *(f"{name}{_CALL}" for name in names))

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        calls = []
        for tool in tools:
            name = lark.optional(lark.text(bare_name(tool, WORD)))
            body = call_object(lark, tool, arguments=("args",))
            calls.append(f"{name} {lark.text(_CALL)} {body}")
        block = lark.one_of(calls)
        if parallel:
            block = lark.many(block, lark.text(_END + _MODEL))
        begin = lark.text(self.header("", prompt_tail))
        return f"{begin} {block} {lark.optional(lark.text(_END))}"


INKLING = Inkling()

FAMILY = ModelFamily(
    layouts=(INKLING,),
)
