"""Calls as `<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>`, and reasoning in `<|inner_prefix|>` …
`<|inner_suffix|>`: Apertus."""

from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import close_block, read_object
from node.parsing.source import Malformed, Source, Step


class Apertus(ToolFormat):
    name = "apertus"
    openers = ("<|tools_prefix|>",)
    orphans = ("<|tools_suffix|>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from source.expect("[")
        yield from source.space()
        separator = yield from source.accept("]")
        while separator != "]":
            call = yield from read_object(source)
            if len(call) != 1:
                raise Malformed
            for name, arguments in call.items():
                source.call(name, arguments)
            yield from source.space()
            separator = yield from source.expect(",", "]")
            yield from source.space()
        yield from close_block(source, *self.orphans)


APERTUS = Apertus()
APERTUS_REASONING = ReasoningFormat("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",))
