"""Outputs of Solar Open: `<|think|>…<|end|>`, `<|begin|>assistant<|content|>…<|end|>`, and calls as
`<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{…}<|tool_call:end|>`."""

import re

from node.parsing.channels import Channel, Channels
from node.parsing.json_calls import WORD, read_arguments
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_BEGIN = "<|begin|>"
_THINK = "<|think|>"
_CONTENT = "<|content|>"
_CALLS = "<|tool_calls|>"
_CALL = "<|tool_call:begin|>"
_CALL_END = "<|tool_call:end|>"
_ID = re.compile(r"[\w\-]*")


class Solar(Channels):
    name = "solar"
    opener = _THINK
    openers = (_CALLS, _CALL)
    begins = (_BEGIN, _THINK, _CONTENT, _CALLS, _CALL)
    ends = ("<|end|>", "<|calls|>")
    strict = frozenset((*begins, *ends))

    def channel_of(self, prompt_tail: str) -> Channel | None:
        at, marker = max((prompt_tail.rfind(each), each) for each in (*self.begins, *self.ends))
        if at < 0 or marker not in (_THINK, _CONTENT):
            return None
        return Channel(kind=PartKind.REASONING if marker == _THINK else PartKind.CONTENT)

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
        yield from source.expect("<|tool_call:name|>")
        name = yield from source.run(WORD)
        yield from source.expect("<|tool_call:args|>")
        if name not in source.schemas:
            raise Malformed
        source.call(name, (yield from read_arguments(source, name, _CALL_END)), call_id)


SOLAR = Solar()
