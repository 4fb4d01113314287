"""Calls of DeepSeek V3.2 and V4: `<｜DSML｜invoke name="f"><｜DSML｜parameter name="a"
string="true">v</｜DSML｜parameter></｜DSML｜invoke>`, in a block of one name or another.

`string="false"` says that the value is JSON.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from node.parsing.invoke import Attributes, InvokeCalls, InvokeTags, as_tag_says

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
    given = {"true": True, "false": False}.get(attributes.get("string", ""))
    return as_tag_says(text, schema, root, is_text=given)


DSML = InvokeCalls("dsml", _TAGS, _BEGINS, _ENDS, _value)
