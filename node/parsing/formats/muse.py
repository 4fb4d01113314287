"""Muse: messages to a recipient, ` to=self<|message|>…<|eom|>` for reasoning, `to=user` for the
answer; calls are tags in a message to the tool."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.headers import read_message_header
from node.parsing.calls.invoke import InvokeCalls, invoke_tags, read_invokes, spell_invoke
from node.parsing.calls.json_calls import WORD
from node.parsing.calls.spelled_json import bare_name
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_START = "<|start|>"
_MESSAGE = "<|message|>"
_MESSAGE_END = "<|eom|>"
_TURN = f"{_START}assistant"
_TURN_END = "<|eot|>"
_SELF = f" to=self{_MESSAGE}"
_BLOCK = "<atem:function_calls>"
_BLOCK_END = "</atem:function_calls>"
_TAGS = invoke_tags("atem:")
MUSE_BLOCK = InvokeCalls("muse", _TAGS, (_BLOCK,), (_BLOCK_END,))
"""The calls without the message around them."""


class Muse(Channels):
    name = "muse"
    opener = f"{_TURN}{_SELF}"
    openers = (_BLOCK,)
    begins = (_START, _MESSAGE)
    ends = (_MESSAGE_END, _TURN_END)
    strict = frozenset((*begins, *ends))
    closing = _MESSAGE_END
    header_begin = _TURN
    reasoning_header = _SELF
    answer_headers = (f" to=user{_MESSAGE}",)
    answer_ends = (_TURN_END,)

    def channel_of(self, prompt_tail: str) -> Channel | None:
        head, message, body = prompt_tail.rpartition(_START)[2].rpartition(_MESSAGE)
        if not message or any(end in body for end in self.ends):
            return None
        return _channel(Channel(), head.rpartition("to=")[2].strip())

    def in_header(self, prompt_tail: str) -> bool:
        return _START in prompt_tail.rpartition(_MESSAGE)[2]

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == _MESSAGE:
            return
        recipient, _ = yield from read_message_header(source, channel)
        _channel(channel, recipient)

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        yield from source.space()
        if (yield from source.accept(_BLOCK)):
            yield from source.space()
            if (yield from source.accept(_BLOCK_END)):
                return
        yield from source.expect(*_TAGS.call)
        yield from read_invokes(source, _TAGS, only=channel.target or "")
        yield from source.accept(_BLOCK_END)
        yield from source.space()

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(f" to={name}{_MESSAGE}" for name in names)

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        bodies = []
        for tool in tools:
            name = bare_name(tool, WORD)
            if _channel(Channel(), name).target is None:
                raise UnsupportedConstraint(
                    f"The model cannot call a tool of the name {name}.", tool.param
                )
            begin = f"to={name}{_MESSAGE}{_BLOCK}\n"
            end = lark.text(f"\n{_BLOCK_END}")
            bodies.append(f"{lark.text(begin)} {spell_invoke(lark, tool, _TAGS)} {end}")
        calls = lark.one_of(bodies)
        if parallel:
            calls = lark.many(calls, lark.text(f"{_MESSAGE_END}{_TURN} "))
        begin = lark.text(self.header(" ", prompt_tail))
        return f"{begin} {calls} {lark.optional(lark.text(_TURN_END))}"


def _channel(channel: Channel, recipient: str) -> Channel:
    if recipient == "self":
        channel.kind = PartKind.REASONING
    elif recipient not in ("", "user", "assistant"):
        channel.target = recipient
    return channel


MUSE = Muse()

FAMILY = ModelFamily(
    layouts=(MUSE,),
    tool_call_aliases={"muse": ("muse_glimmer", "muse_spark")},
    reasoning_aliases={"muse": ("muse_glimmer", "muse_spark")},
)
