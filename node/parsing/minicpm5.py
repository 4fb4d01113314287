"""Calls of MiniCPM5: `<function name="f"><param name="a">v</param></function>`, without any tag
around. Values that hold markup are in `<![CDATA[` … `]]>`; others may have entities in them."""

import re
from typing import Any
from xml.sax.saxutils import unescape

from node.parsing.coercion import property_schema, typed
from node.parsing.format import ToolFormat
from node.parsing.invoke import read_value
from node.parsing.source import Malformed, Source, Step

_CDATA = "<![CDATA["
_CDATA_END = "]]>"
_PARAM = "<param name="
_PARAM_END = "</param>"
_END = "</function>"
_NAME = re.compile(r"[^<>/\n]*")
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&#39;": "'", "&#34;": '"'}


class MiniCpm5(ToolFormat):
    name = "minicpm5"
    openers = ("<function name=",)
    orphans = (_END,)

    def read(self, source: Source, opener: str) -> Step[None]:
        name = yield from self._read_name(source)
        if name not in source.schemas:
            raise Malformed
        schema = source.schemas[name]
        arguments: dict[str, Any] = {}
        if (yield from source.expect(">", "/>")) == ">":
            yield from source.space()
            mark = yield from source.expect(_PARAM, _END)
            while mark == _PARAM:
                key = yield from self._read_name(source)
                yield from source.expect(">")
                text, mark = yield from self._read_value(source)
                arguments[key] = typed(text, property_schema(schema, key), schema)
        if not arguments and source.has_spoken:
            # Within a sentence it is talk about calls.
            raise Malformed
        source.call(name, arguments)

    def _read_name(self, source: Source) -> Step[str]:
        return (yield from source.run(_NAME)).strip().strip("\"'").strip()

    def _read_value(self, source: Source) -> Step[tuple[str, str]]:
        """(a value, the tag that followed its end)."""
        space = yield from source.space()
        if not (yield from source.accept(_CDATA)):
            text, mark = yield from read_value(source, (_PARAM_END,), (_PARAM, _END))
            return unescape(space + text, _ENTITIES), mark
        value = ""
        more = _CDATA
        while more:
            # Text with the end mark in it is in several pieces.
            text, _ = yield from source.capture(_CDATA_END)
            value += text
            more = yield from source.accept(_CDATA)
        yield from source.space()
        yield from source.expect(_PARAM_END)
        yield from source.space()
        return value, (yield from source.expect(_PARAM, _END))


MINICPM5 = MiniCpm5()
