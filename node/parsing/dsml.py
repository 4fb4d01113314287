"""Calls of DeepSeek V3.2 and V4: `<｜DSML｜invoke name="f"><｜DSML｜parameter name="a"
string="true">v</｜DSML｜parameter></｜DSML｜invoke>`, in a block of one name or another.

`string="false"` says that the value is JSON.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from node.parsing.coercion import typed
from node.parsing.format import ToolFormat
from node.parsing.invoke import Attributes, InvokeTags, read_invokes
from node.parsing.json_text import read_json
from node.parsing.source import Source, Step

_PREFIXES = ("\uff5cDSML\uff5c", "\uff5cDSML\uff5c ")
_BLOCKS = ("function_calls", "tool_calls", "calls")


def _tags(form: str, *names: str) -> tuple[str, ...]:
    return tuple(form.format(prefix + name) for prefix, name in product(_PREFIXES, names))


_BEGINS = _tags("<{}>", *_BLOCKS)
_ENDS = _tags("</{}>", *_BLOCKS)
_TAGS = InvokeTags(
    _tags("<{}", "invoke"),
    _tags("</{}>", "invoke"),
    _tags("<{}", "parameter"),
    _tags("</{}>", "parameter"),
)


def _value(text: str, attributes: Attributes, schema: object, root: Mapping[str, Any]) -> Any:
    given = attributes.get("string")
    if given == "true":
        return text
    if given == "false":
        try:
            return read_json(text)
        except ValueError:
            return text
    return typed(text, schema, root)


class Dsml(ToolFormat):
    name = "dsml"
    openers = (*_BEGINS, *_TAGS.call)
    orphans = (*_ENDS, *_TAGS.call_end)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in _BEGINS:
            yield from source.space()
            if (yield from source.expect(*_TAGS.call, *_ENDS)) in _ENDS:
                source.edge()
                return
        yield from read_invokes(source, _TAGS, _value)
        yield from source.accept(*_ENDS)


DSML = Dsml()
