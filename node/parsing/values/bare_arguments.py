"""Arguments of a call whose values are bare text, without quotes.

All formats follow one rule: a value is what its tag says about its type, or else what the tool's
schema says (`coercion`). A string is the text as it stands, with any quotes, except in two cases:
if all strings of the call are quoted like in JSON, the model quotes its strings; and if a string
must be one of some values, it may be one of them in quotes.

So a value that is certainly a string is emitted as it arrives, once it is known if strings are
quoted, which usually shows in the first character of the first string. Every other value is emitted
when it is complete.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.parsing.coercion import property_schema, typed, types_of
from node.parsing.json_text import read_json
from node.parsing.scanning.open_call import Members, OpenCall
from node.parsing.scanning.pieces import Pieces

QUOTED = r'\s*"(.|\n)*"\s*'
"""Pattern of texts that may be read as a JSON string."""
_NO_TEXT = re.compile(r"n(?:u(?:l(?:l\s*)?)?)?|N(?:o(?:n(?:e\s*)?)?)?")
"""Texts that mean null for an optional string, and their starts."""
_LONGEST_NULL = 64
"""Most characters of such a text."""
_NOTHING = re.compile("(?!)")


class _PendingArgument(NamedTuple):
    """An argument that is buffered because an earlier one is."""

    name: str
    value: Any
    quoted: str | None
    """The text between its quotes, if that may be the value."""


class BareArguments:
    """Writes the arguments of one call: each with `add`, with `put`, or from `begin` to `end`; then
    `close`."""

    def __init__(self, call: OpenCall) -> None:
        self.is_empty = True
        self._schema = call.schema
        self._members = Members(call)
        self._pending: list[_PendingArgument] = []
        """Buffered arguments in order; the first may be quoted."""
        self._has_unquoted = False
        self._name = ""
        self._is_text: bool | None = None
        self._pieces = Pieces()
        """Text of the current argument that was not emitted."""
        self._seen = ""
        """The same text from the first character that is not white space, while it may not be a
        string."""
        self._receiver: Callable[[str], None] | None = None
        """Receives the argument's text as it arrives; None if it is buffered until it is
        complete."""
        self._begins: re.Pattern[str] | None = None
        """Matches the texts for which it is still open whether they are emitted as they arrive;
        None if they are not."""

    def begin(self, name: str, *, is_text: bool | None = None) -> None:
        """Begins an argument; its text follows with `write`. `is_text` is True if its tag says that
        it is text, False if the tag says JSON."""
        self.is_empty = False
        self._name, self._is_text = name, is_text
        self._seen, self._receiver = "", None
        self._begins = None
        if not self._members.takes_text(name):
            return
        if is_text is None:
            self._begins = self._undecided()
        elif is_text and not self._pending:
            self._emit_text()

    def write(self, text: str) -> None:
        """Adds more of the argument's text."""
        if self._receiver is not None:
            self._receiver(text)
            return
        self._pieces.add(text)
        if self._begins is None:
            return
        self._seen = self._seen + text if self._seen else text.lstrip()
        is_null = len(self._seen) <= _LONGEST_NULL and self._begins.fullmatch(self._seen)
        if self._seen and not is_null:
            self._decide()

    def end(self) -> None:
        """Ends the argument."""
        text = self._pieces.take()
        if self._receiver is not None:
            self._members.end_text()
        elif self._is_text is None:
            self._add_typed(text)
        else:
            self._add(text if self._is_text else json_or_text(text))
        self._receiver = None

    def add(self, name: str, text: str, *, is_text: bool | None = None) -> None:
        """Writes a whole argument given as text; see `begin`."""
        self.begin(name, is_text=is_text)
        self.write(text)
        self.end()

    def put(self, name: str, value: Any) -> None:
        """Writes a whole argument given as a value."""
        self.is_empty = False
        self._name = name
        self._add(value)

    def close(self) -> None:
        """Ends the arguments."""
        self._flush()
        self._members.close()

    def _undecided(self) -> "re.Pattern[str] | None":
        """Returns the pattern for `_begins` of the argument that begins."""
        schema = property_schema(self._schema, self._name)
        types = types_of(schema, self._schema)
        if _values_of(schema) is not None or "string" not in types or types - {"string", "null"}:
            return None
        return _NO_TEXT if "null" in types else _NOTHING

    def _decide(self) -> None:
        """Decides how to emit a text that is neither null nor blank."""
        if self._seen.startswith('"') and not self._has_unquoted:
            self._begins = None
            return
        self._has_unquoted = True
        self._flush()
        self._emit_text()

    def _emit_text(self) -> None:
        self._members.begin_text(self._name)
        self._receiver = self._members.text
        self._receiver(self._pieces.take())

    def _add_typed(self, text: str) -> None:
        schema = property_schema(self._schema, self._name)
        value = typed(text, schema, self._schema)
        if not isinstance(value, str) or "string" not in types_of(schema, self._schema):
            self._add(value)
            return
        inner, values = _unquoted(text), _values_of(schema)
        if values is not None:
            self._add(inner if text not in values and inner in values else text)
        elif inner is None or self._has_unquoted:
            self._has_unquoted = self._has_unquoted or bool(text)
            self._add(text)
        else:
            self._add(text, inner)

    def _add(self, value: Any, quoted: str | None = None) -> None:
        if self._has_unquoted:
            self._flush()
        if self._pending or quoted is not None:
            self._pending.append(_PendingArgument(self._name, value, quoted))
        else:
            self._members.value(self._name, value)

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for name, value, quoted in pending:
            is_quoted = quoted is not None and not self._has_unquoted
            self._members.value(name, quoted if is_quoted else value)


def json_or_text(text: str) -> Any:
    """Returns the value of a text that is declared to be JSON; the text itself if it is not."""
    try:
        return read_json(text)
    except ValueError:
        return text


def _values_of(schema: object) -> list[Any] | None:
    """Returns the values that the argument is restricted to; None if it is not."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    return values if isinstance(values, list) else None


def _unquoted(text: str) -> str | None:
    """Returns the content of a text that is one JSON string; None if it is not."""
    text = text.strip()
    if not text.startswith('"'):
        return None
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
