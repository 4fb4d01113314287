"""Hermes, Qwen2.5, Qwen3 and many more: calls as JSON in `<tool_call>` … `</tool_call>`.

The same models also write calls as XML, in the tag or without it, so one format with two names
reads all of them.
"""

import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import with_recovery
from node.parsing.calls.json_calls import emit_list, emit_object
from node.parsing.calls.spelled_json import between, blocks, call_objects
from node.parsing.calls.xml_calls import XmlCalls
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_LOOSE = re.compile(r"[\s}\]]*")
"""Superfluous brackets."""


class Hermes(XmlCalls):
    """Reads JSON and XML in the tag."""

    def __init__(self) -> None:
        super().__init__("hermes", "<tool_call>")

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        block = between(lark, "<tool_call>", call_objects(lark, tools), "</tool_call>")
        return blocks(lark, block, parallel=parallel)

    def read_json(self, source: Source) -> Step[None]:
        goes_on: str | None = "{"
        passed = ""
        while goes_on:
            if (yield from source.accept("[")):
                yield from emit_list(source)
            else:
                passed = yield from emit_object(source, passed)
            goes_on = yield from source.maybe(self._read_more(source))
        if passed:
            raise Malformed
        # Some models omit it.
        yield from source.maybe(self._read_close(source))

    def _read_more(self, source: Source) -> Step[str]:
        """Reads up to another object or list in the same tag."""
        yield from source.space()
        yield from source.accept(",")
        yield from source.space()
        ahead = yield from source.peek()
        if ahead not in ("{", "["):
            raise Malformed
        return ahead

    def _read_close(self, source: Source) -> Step[str]:
        yield from source.run(_LOOSE)
        return (yield from source.expect("</tool_call>"))


HERMES = Hermes()


class Qwen3Coder(AnyOf):
    """Reads the same calls as `hermes`; its models write XML."""

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        return XmlCalls.calls_grammar(HERMES, lark, tools, parallel=parallel)


QWEN3_CODER = Qwen3Coder("qwen3_coder", (HERMES,))
"""Qwen3-Coder, Qwen3.5, MiMo, Step 3.5: `<function=f><parameter=a>v</parameter></function>`, with
or without `<tool_call>`. The same format as `hermes`."""

FAMILY = ModelFamily(
    tool_calls=(with_recovery(HERMES), with_recovery(QWEN3_CODER)),
    tool_call_aliases={
        "qwen3_coder": (
            "step5",
            "mimo",
            "qwen3.5",
            "qwen3_5",
            "qwen3_coder_xml",
            "qwen3_xml",
            "step",
            "step3p5",
            "step_35",
        ),
        "hermes": (
            "granite4",
            "iquest_coder_v1",
            "json_tools",
            "nous",
            "qwen",
            "qwen25",
            "qwen2.5",
            "qwen3",
            "qwen3_moe",
            "qwen3_vl",
        ),
    },
)
