"""Calls of Step 3: `<steptml:invoke name="f"><steptml:parameter name="a">v</steptml:parameter>
</steptml:invoke>`, each between markers, all in a section."""

from node.parsing.format import ToolFormat
from node.parsing.invoke import invoke_tags, read_invoke
from node.parsing.source import Source, Step

_SECTION = "<\uff5ctool_calls_begin\uff5c>"
_SECTION_END = "<\uff5ctool_calls_end\uff5c>"
_CALL = "<\uff5ctool_call_begin\uff5c>"
_CALL_END = "<\uff5ctool_call_end\uff5c>"
_SEPARATOR = "<\uff5ctool_sep\uff5c>"
_TAGS = invoke_tags("steptml:")


class Step3(ToolFormat):
    name = "step3"
    openers = (_SECTION, _CALL, *_TAGS.call)
    orphans = (_SECTION_END, _CALL_END, _SEPARATOR)

    def read(self, source: Source, opener: str) -> Step[None]:
        begin = opener
        if opener == _SECTION:
            yield from source.space()
            begin = yield from source.expect(_CALL, *_TAGS.call, _SECTION_END)
            if begin == _SECTION_END:
                source.edge()
                return
        while begin:
            if begin == _CALL:
                yield from self._head(source)
            yield from read_invoke(source, _TAGS)
            yield from source.space()
            if (yield from source.accept(_CALL_END)):
                yield from source.space()
            if (yield from source.accept(_SEPARATOR)):
                yield from source.space()
            begin = yield from source.accept(_CALL, *_TAGS.call)
        yield from source.accept(_SECTION_END)

    def _head(self, source: Source) -> Step[None]:
        yield from source.space()
        # What kind of call it is.
        if (yield from source.accept("function")):
            yield from source.space()
            yield from source.expect(_SEPARATOR)
            yield from source.space()
        yield from source.expect(*_TAGS.call)


STEP3 = Step3()
