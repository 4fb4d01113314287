"""Calls as JSON in `<tool_call>` … `</tool_call>`: Hermes, Qwen2.5, Qwen3 and many more.

The same models write the XML of `qwen_xml` too, in the tag or without it, so all of that is read by
one format, which has two names.
"""

import re
from collections.abc import Mapping
from typing import Any

from node.parsing.json_text import read_json
from node.parsing.qwen_xml import XmlCalls
from node.parsing.source import Malformed, Source, Step

_LOOSE = re.compile(r"[\s}\]]*")
"""Brackets too many."""


def tell_json_call(source: Source, call: Any) -> None:
    """Tells the call that a JSON object `{"name": …, "arguments": {…}}` is. Raises `Malformed` for
    any other value."""
    source.call(*_json_call(call))


def tell_json_calls(source: Source, value: Any) -> None:
    """Tells the call, or the list of calls, that a JSON value is: all of it or none. Raises
    `Malformed`."""
    calls = [_json_call(each) for each in (value if isinstance(value, list) else [value])]
    if not calls or any(name not in source.schemas for name, _ in calls):
        raise Malformed
    for name, arguments in calls:
        source.call(name, arguments)


def _json_call(call: Any) -> tuple[str, str | Mapping[str, Any]]:
    if isinstance(call, Mapping) and isinstance(inner := call.get("function"), Mapping):
        call = inner
    if not isinstance(call, Mapping):
        raise Malformed
    name = call.get("name", call.get("function"))
    arguments = call.get("arguments", call.get("parameters"))
    if not isinstance(name, str):
        raise Malformed
    if arguments is None or arguments == "":
        return name, {}
    if isinstance(arguments, Mapping) or (isinstance(arguments, str) and _is_object(arguments)):
        return name, arguments
    raise Malformed


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), Mapping)
    except ValueError:
        return False


class Hermes(XmlCalls):
    """Any body of the tag."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "<tool_call>")

    def _read_json(self, source: Source) -> Step[None]:
        goes_on: str | None = "{"
        while goes_on:
            tell_json_calls(source, (yield from source.json_value()))
            goes_on = yield from source.maybe(self._read_more(source))
        # Some models stop without it.
        yield from source.maybe(self._read_close(source))

    def _read_more(self, source: Source) -> Step[str]:
        """Up to another object or list in the same tag."""
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


HERMES = Hermes("hermes")
QWEN3_CODER = Hermes("qwen3_coder")
"""Calls as `<function=f><parameter=a>v</parameter></function>` in `<tool_call>`, or without it:
Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo, Step 3.5. The same format as `hermes`."""
