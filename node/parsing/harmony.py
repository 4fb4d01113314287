"""Channels with headers, as of GPT-OSS: `<|channel|>analysis<|message|>…<|end|>`, and calls to
the recipient in the header, `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}`.

Commentary for nobody is said to the user. `<|call|>` ends the output, and must be read before.
"""

import re

from node.parsing.channels import Channel, Channels
from node.parsing.headers import CHANNEL, MESSAGE, START, read_message_header
from node.parsing.json_calls import read_arguments
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_NAMESPACE = "functions."
_NOBODY = frozenset({"", "assistant", "user", "all"})


class Harmony(Channels):
    name = "harmony"
    opener = "<|channel|>analysis<|message|>"
    openers = ("<|channel|>commentary to=",)
    begins = (START, CHANNEL, MESSAGE)
    ends = ("<|end|>", "<|return|>", "<|call|>")
    strict = frozenset((*begins, *ends))
    stop_tokens = ("<|call|>",)

    def channel_of(self, prompt_tail: str) -> Channel | None:
        header = prompt_tail.rpartition(START)[2]
        head, message, body = header.rpartition(MESSAGE)
        if not message or any(end in body for end in self.ends):
            return None
        return self._channel(Channel(), *_words(head))

    def in_header(self, prompt_tail: str) -> bool:
        return START in prompt_tail.rpartition(MESSAGE)[2]

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == MESSAGE:
            return
        recipient, name = yield from read_message_header(source, channel)
        self._channel(channel, recipient, name)

    def _channel(self, channel: Channel, recipient: str, name: str) -> Channel:
        if name == "analysis":
            channel.kind = PartKind.REASONING
        if recipient not in _NOBODY:
            channel.target = recipient.removeprefix(_NAMESPACE)
        return channel

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        name = channel.target or ""
        if name not in source.schemas:
            raise Malformed
        yield from source.space()
        source.call(name, (yield from read_arguments(source, name, *self.ends)))
        yield from source.space()


def _words(header: str) -> tuple[str, str]:
    """(recipient, channel) of a header that is complete."""
    recipients = re.findall(r"to=([^\s<]+)", header)
    names = re.findall(r"<\|channel\|>\s*([^\s<]+)", header)
    return (recipients or [""])[-1], (names or [""])[-1]


HARMONY = Harmony()
