"""Outputs of Muse: messages to somebody, ` to=self<|message|>…<|eom|>` for reasoning, `to=user` for
the answer, and to a tool for its calls, which are tags that name the same tool."""

from node.parsing.channels import Channel, Channels
from node.parsing.headers import read_message_header
from node.parsing.invoke import InvokeCalls, invoke_tags, read_invokes
from node.parsing.source import Source, Step
from node.types import PartKind

_START = "<|start|>"
_MESSAGE = "<|message|>"
_BLOCK = "<atem:function_calls>"
_BLOCK_END = "</atem:function_calls>"
_TAGS = invoke_tags("atem:")
MUSE_BLOCK = InvokeCalls("muse", _TAGS, (_BLOCK,), (_BLOCK_END,))
"""The calls without the message to the tool."""


class Muse(Channels):
    name = "muse"
    opener = "<|start|>assistant to=self<|message|>"
    openers = (_BLOCK,)
    begins = (_START, _MESSAGE)
    ends = ("<|eom|>", "<|eot|>")
    strict = frozenset((*begins, *ends))

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
        yield from source.expect(*_TAGS.call)
        yield from read_invokes(source, _TAGS, only=channel.target or "")
        yield from source.accept(_BLOCK_END)
        yield from source.space()


def _channel(channel: Channel, recipient: str) -> Channel:
    if recipient == "self":
        channel.kind = PartKind.REASONING
    elif recipient not in ("", "user", "assistant"):
        channel.target = recipient
    return channel


MUSE = Muse()
