"""Step 3: `<steptml:invoke name="f"><steptml:parameter name="a">v</steptml:parameter>
</steptml:invoke>`, each between markers, all in a section."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.invoke import invoke_tags, read_invoke, spell_invoke
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_CALL = "<\uff5ctool_call_begin\uff5c>"
_CALL_END = "<\uff5ctool_call_end\uff5c>"
_SEPARATOR = "<\uff5ctool_sep\uff5c>"
_TAGS = invoke_tags("steptml:")


class Step3(SectionCalls):
    name = "step3"
    sections = ("<\uff5ctool_calls_begin\uff5c>",)
    section_ends = ("<\uff5ctool_calls_end\uff5c>",)
    calls = (_CALL, *_TAGS.call)
    openers = (*sections, *calls)
    orphans = (*section_ends, _CALL_END, _SEPARATOR)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        head = f"{_CALL}function{_SEPARATOR}"
        calls = [between(lark, head, spell_invoke(lark, tool, _TAGS), _CALL_END) for tool in tools]
        body = blocks(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.sections[0], body, self.section_ends[0])

    def read_call(self, source: Source, begin: str) -> Step[None]:
        if begin == _CALL:
            yield from self._head(source)
        yield from read_invoke(source, _TAGS)
        yield from source.space()
        for marker in (_CALL_END, _SEPARATOR):
            if (yield from source.accept(marker)):
                yield from source.space()

    def _head(self, source: Source) -> Step[None]:
        yield from source.space()
        # The kind of the call.
        if (yield from source.accept("function")):
            yield from source.space()
            yield from source.expect(_SEPARATOR)
            yield from source.space()
        yield from source.expect(*_TAGS.call)


STEP3 = Step3()

FAMILY = ModelFamily(
    tool_calls=(STEP3,),
)
