"""Functionary v3.2: messages to a recipient, `>>>all⏎text` for the answer and `>>>f⏎{…}` for a
call. Older models write `<|from|>assistant⏎<|recipient|>f⏎<|content|>{…}`."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.json_calls import WORD, read_call, read_function
from node.parsing.calls.spelled_json import arguments_of, bare_name
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_TO = ">>>"
_FROM = "<|from|>"
_RECIPIENT = "<|recipient|>"
_CONTENT = "<|content|>"
_FUNCTION = "<function="


class FunctionaryV32(Channels):
    name = "functionary_v32"
    openers = (_TO, _RECIPIENT, _FUNCTION)
    begins = (_TO, _FROM, _RECIPIENT, _FUNCTION)
    ends = ("<|stop|>",)
    header_begin = _TO
    answer_headers = ("all\n",)
    answer_ends = ("",)
    drops_calls = False
    """The start of a call may be text of an answer, such as a Python session."""

    def in_header(self, prompt_tail: str) -> bool:
        return prompt_tail.rstrip().endswith((_TO, _RECIPIENT))

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        opener = channel.header
        if opener == _FUNCTION:
            channel.target = ""
            return
        if opener == _FROM:
            channel.header += yield from source.expect("assistant")
            channel.header += yield from source.space()
            channel.header += yield from source.expect(_RECIPIENT)
        name = yield from source.run(WORD)
        channel.header += name
        channel.header += yield from source.expect("\n")
        if channel.header.startswith((_FROM, _RECIPIENT)):
            channel.header += yield from source.expect(_CONTENT)
        else:
            channel.header += yield from source.accept(_CONTENT)
        if name != "all":
            if name not in source.calls.schemas:
                raise Malformed
            channel.target = name

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == _FUNCTION:
            yield from read_function(source)
            return
        yield from source.space()
        name = channel.target or ""
        (yield from read_call(source, name, *self.ends)).end()
        yield from source.space()

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        if _has_markers(prompt_tail):
            return f"{lark.text(self.answer_headers[0] + _CONTENT)} {content}"
        return super().spell_text(lark, content, prompt_tail)

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        if _has_markers(prompt_tail):
            begin, body, between = "", f"\n{_CONTENT}", f"\n{_FROM}assistant\n{_RECIPIENT}"
        else:
            begin, body, between = self.header("", prompt_tail), "\n", _TO
        calls = [
            f"{lark.text(bare_name(tool, WORD) + body)} {arguments_of(lark, tool)}"
            for tool in tools
        ]
        block = lark.one_of(calls)
        if parallel:
            block = lark.many(block, lark.text(between))
        return f"{lark.text(begin)} {block}"


def _has_markers(prompt_tail: str | None) -> bool:
    """True if the prompt has begun a header of the older kind."""
    return prompt_tail is not None and prompt_tail.rstrip().endswith(_RECIPIENT)


FUNCTIONARY_V32 = FunctionaryV32()

FAMILY = ModelFamily(
    layouts=(FUNCTIONARY_V32,),
    tool_call_aliases={"functionary_v32": ("functionary", "meetkai")},
)
