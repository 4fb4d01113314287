"""Channels with headers, as of GPT-OSS: `<|channel|>analysis<|message|>…<|end|>`, and calls to
the recipient in the header, `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}`.

Commentary for nobody is said to the user. `<|call|>` ends the output, and must be read before.
"""

import re

from node.parsing.channels import Channel, Channels
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_WORD = re.compile(r"[\w.:/\-]*")
_START = "<|start|>"
_CHANNEL = "<|channel|>"
_CONSTRAIN = "<|constrain|>"
_MESSAGE = "<|message|>"
_TO = "to="
_NAMESPACE = "functions."
_NOBODY = frozenset({"", "assistant", "user", "all"})
_BARE_WORDS = 2
"""Of a channel: its name and the type of its content."""


def read_message_header(source: Source, channel: Channel) -> Step[tuple[str, str]]:
    """Reads a header up to the message: (its recipient, the name of its last channel), "" where it
    has none. Adds all it read to the channel's header. Raises `Malformed` at the first word that
    no header has."""
    recipient = ""
    bare: list[str] = []
    is_header = channel.header == _CHANNEL
    if channel.header == _START:
        channel.header += yield from source.run(_WORD)
    elif not is_header:
        channel.header += yield from source.accept("assistant")
    while (marker := (yield from _read_marker(source, channel))) != _MESSAGE:
        if marker in (_CHANNEL, _CONSTRAIN):
            is_header = True
            bare = [] if marker == _CHANNEL else bare
            continue
        if not marker and not (is_header and len(bare) < _BARE_WORDS):
            raise Malformed
        word = yield from source.run(_WORD)
        channel.header += word
        if not word:
            raise Malformed
        if marker == _TO:
            recipient = word
        else:
            bare.append(word)
    return recipient, bare[0] if bare else ""


def _read_marker(source: Source, channel: Channel) -> Step[str]:
    channel.header += yield from source.space()
    marker = yield from source.accept(_MESSAGE, _CHANNEL, _CONSTRAIN, _TO)
    channel.header += marker
    return marker


class Harmony(Channels):
    name = "harmony"
    opener = "<|channel|>analysis<|message|>"
    openers = ("<|channel|>commentary to=",)
    begins = (_START, _CHANNEL, _MESSAGE)
    ends = ("<|end|>", "<|return|>", "<|call|>")
    strict = frozenset((*begins, *ends))
    stop_tokens = ("<|call|>",)

    def channel_of(self, prompt_tail: str) -> Channel | None:
        header = prompt_tail.rpartition(_START)[2]
        head, message, body = header.rpartition(_MESSAGE)
        if not message or any(end in body for end in self.ends):
            return None
        return self._channel(Channel(), *_words(head))

    def in_header(self, prompt_tail: str) -> bool:
        return _START in prompt_tail.rpartition(_MESSAGE)[2]

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == _MESSAGE:
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
        source.call(name, (yield from source.json()))
        yield from source.space()


def _words(header: str) -> tuple[str, str]:
    """(recipient, channel) of a header that is complete."""
    recipients = re.findall(r"to=([^\s<]+)", header)
    names = re.findall(r"<\|channel\|>\s*([^\s<]+)", header)
    return (recipients or [""])[-1], (names or [""])[-1]


HARMONY = Harmony()
