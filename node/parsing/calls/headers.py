"""Headers of messages, `<|start|>assistant to=f<|channel|>commentary<|message|>`, as Harmony and
Muse write them."""

from node.parsing.calls.channels import Channel
from node.parsing.calls.json_calls import WORD
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
_TO = "to="
_BARE_WORDS = 2
"""Most bare words of a channel: its name and the type of its content."""


def read_message_header(source: Source, channel: Channel) -> Step[tuple[str, str]]:
    """Reads a header up to the message and returns (its recipient, the name of its last channel),
    each "" if missing. All text read is added to the channel's header. Raises `Malformed` at the
    first word that no header has."""
    recipient = ""
    bare: list[str] = []
    is_header = channel.header == CHANNEL
    if channel.header == START:
        channel.header += yield from source.run(WORD)
    elif not is_header:
        channel.header += yield from source.accept("assistant")
    while (marker := (yield from _read_marker(source, channel))) != MESSAGE:
        if marker in (CHANNEL, CONSTRAIN):
            is_header = True
            bare = [] if marker == CHANNEL else bare
            continue
        if not marker and not (is_header and len(bare) < _BARE_WORDS):
            raise Malformed
        word = yield from source.run(WORD)
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
    marker = yield from source.accept(MESSAGE, CHANNEL, CONSTRAIN, _TO)
    channel.header += marker
    return marker
