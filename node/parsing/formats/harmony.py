"""GPT-OSS: channels with headers, `<|channel|>analysis<|message|>…<|end|>`, and calls to the
header's recipient, `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}`.

Commentary without a recipient is content. `<|call|>` ends the output, but must be read before it
ends.
"""

import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.headers import CHANNEL, CONSTRAIN, MESSAGE, START, read_message_header
from node.parsing.calls.json_calls import WORD, read_call
from node.parsing.calls.spelled_json import arguments_of, bare_name
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_NAMESPACE = "functions."
_COMMENTARY = f"{CHANNEL}commentary"
_NOBODY = frozenset({"", "assistant", "user", "all"})


class Harmony(Channels):
    name = "harmony"
    opener = "<|channel|>analysis<|message|>"
    openers = ("<|channel|>commentary to=",)
    begins = (START, CHANNEL, MESSAGE)
    ends = ("<|end|>", "<|return|>", "<|call|>")
    strict = frozenset((*begins, *ends))
    stop_tokens = ("<|call|>",)
    closing = "<|end|>"
    header_begin = f"{START}assistant"
    reasoning_header = opener
    answer_headers = ("<|channel|>final<|message|>",)
    answer_ends = ("<|return|>",)

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
        source.calls.declared_schema(name)
        yield from source.space()
        (yield from read_call(source, name, *self.ends)).end()
        yield from source.space()

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        return (_COMMENTARY, f" to={_NAMESPACE}")

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        """Writes one call, even if `parallel`: its end ends the output."""
        constrained = lark.optional(lark.text(CONSTRAIN))
        calls = []
        for tool in tools:
            to = f" to={_NAMESPACE}{bare_name(tool, WORD)}"
            headers = [
                f"{lark.text(self.header(begin, prompt_tail))} {constrained} "
                f"{lark.text(f'json{MESSAGE}')}"
                for begin in (f"{_COMMENTARY}{to} ", f"{to}{_COMMENTARY} ")
            ]
            calls.append(f"{lark.one_of(headers)} {arguments_of(lark, tool)}")
        return f"{lark.one_of(calls)} {lark.optional(lark.text('<|call|>'))}"


def _words(header: str) -> tuple[str, str]:
    """Returns (recipient, channel) of a complete header."""
    recipients = re.findall(r"to=([^\s<]+)", header)
    names = re.findall(r"<\|channel\|>\s*([^\s<]+)", header)
    return (recipients or [""])[-1], (names or [""])[-1]


HARMONY = Harmony()

FAMILY = ModelFamily(
    layouts=(HARMONY,),
    tool_call_aliases={"harmony": ("gpt_oss", "gptoss", "openai")},
    reasoning_aliases={"harmony": ("gpt_oss", "gptoss", "openai", "openai_gptoss")},
)
