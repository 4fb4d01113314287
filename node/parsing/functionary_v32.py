"""Outputs of Functionary v3.2: parts to somebody, `>>>all⏎text` for the answer and `>>>f⏎{…}` for a
call. Older ones write `<|from|>assistant⏎<|recipient|>f⏎<|content|>{…}`."""

from node.parsing.channels import Channel, Channels
from node.parsing.json_calls import WORD, read_arguments, read_function
from node.parsing.source import Malformed, Source, Step

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
            if name not in source.schemas:
                raise Malformed
            channel.target = name

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == _FUNCTION:
            yield from read_function(source)
            return
        yield from source.space()
        name = channel.target or ""
        source.call(name, (yield from read_arguments(source, name, *self.ends)))
        yield from source.space()


FUNCTIONARY_V32 = FunctionaryV32()
