"""The arguments of a call whose values stand as bare text, without quotes: what they say.

One rule for all formats: a value is what its tag says of its type, or what the tool's schema says
(`coercion`). A string is the text as it stands, quotes and all, but in two cases: where all strings
of the call are quoted as in JSON, the model quotes its strings; and where a string has to be one of
some values, it may be a quoted one of them.
"""

from typing import Any

from node.parsing.coercion import Schema, property_schema, typed, types_of
from node.parsing.json_text import read_json

QUOTED = r'\s*"(.|\n)*"\s*'
"""The pattern of texts that may be read as a string of JSON."""


class BareArguments:
    """Of one call."""

    def __init__(self, schema: Schema) -> None:
        """`schema` is the tool's."""
        self._schema = schema
        self._values: dict[str, Any] = {}
        self._quoted: dict[str, str] = {}
        """Of those that are quoted, what is between the quotes."""
        self._has_unquoted = False

    def add(self, name: str, text: str, *, is_text: bool | None = None) -> None:
        """An argument as it is written; `is_text`: its tag says that it is text, or JSON."""
        schema = property_schema(self._schema, name)
        self._quoted.pop(name, None)
        if is_text is None:
            self._values[name] = self._typed(name, text, schema)
        else:
            self._values[name] = text if is_text else json_or_text(text)

    def put(self, name: str, value: Any) -> None:
        """An argument that is written in another way."""
        self._quoted.pop(name, None)
        self._values[name] = value

    def values(self) -> dict[str, Any]:
        """All of them, by name."""
        return self._values if self._has_unquoted else self._values | self._quoted

    def _typed(self, name: str, text: str, schema: object) -> Any:
        value = typed(text, schema, self._schema)
        if not isinstance(value, str) or "string" not in types_of(schema, self._schema):
            return value
        inner = _unquoted(text)
        values = schema.get("enum") if isinstance(schema, dict) else None
        if isinstance(values, list):
            return inner if text not in values and inner in values else text
        if inner is None:
            self._has_unquoted = self._has_unquoted or bool(text)
        else:
            self._quoted[name] = inner
        return value


def json_or_text(text: str) -> Any:
    """The value of a text that is said to be JSON."""
    try:
        return read_json(text)
    except ValueError:
        return text


def _unquoted(text: str) -> str | None:
    """What a text that is one string of JSON says; None where it is none."""
    text = text.strip()
    if not text.startswith('"'):
        return None
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
