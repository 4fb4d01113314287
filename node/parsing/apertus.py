"""Calls as `<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>`, and reasoning in `<|inner_prefix|>` …
`<|inner_suffix|>`: Apertus."""

from collections.abc import Mapping

from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import close_block, read_marked_calls
from node.parsing.sink import Call
from node.parsing.source import Malformed, Source, Step
from node.parsing.tell import call_of


def _call(source: Source, value: object) -> Call:
    """Of an object whose one key is the name."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise Malformed
    ((name, arguments),) = value.items()
    return call_of(source, name, arguments)


class Apertus(ToolFormat):
    name = "apertus"
    openers = ("<|tools_prefix|>",)
    orphans = ("<|tools_suffix|>",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from read_marked_calls(source, each=_call)
        yield from close_block(source, *self.orphans)


APERTUS = Apertus()
APERTUS_REASONING = ReasoningFormat("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",))
