"""Python literals, as models write them in calls."""

import json

from node.parsing.coercion import types_of
from node.parsing.constraints.lark import Lark, Text
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.text_patterns import has_length, length_of, patterns_of
from node.parsing.constraints.values import (
    Argument,
    Flat,
    SchemaPlace,
    allows_anything,
    flat_schemas,
    takes,
)
from node.parsing.values.literal_values import Language, spell_value

_PLAIN = r"[^'\"\\\x00-\x1f]"
"""Characters that stand for themselves between any quotes."""
_ESCAPE = r"\\['\"\\nrt]"
_QUOTES = ('"', "'")


class PythonLiterals(Language):
    """Writes values as Python literals."""

    # Some templates write nested values as JSON.
    words = {True: ("True", "true"), False: ("False", "false"), None: ("None", "null")}
    separator = ", "

    characters = rf"{_PLAIN}|\n"
    """Pattern of characters that stand for themselves."""
    key_quotes: tuple[str, ...] = _QUOTES[:1]
    """Quotes around names of undeclared members."""
    forbidden: tuple[str, ...] = ()
    """Texts that no string may contain."""

    def __init__(self, closer: str) -> None:
        """`closer` ends the block of calls, so no string may contain it; it may be empty."""
        self._closer = closer

    def spell_text(self, lark: Lark, flat: Flat, place: SchemaPlace) -> str:
        length = length_of(flat) if has_length(flat) else "*"
        others = {key: value for key, value in flat.items() if not key.endswith("Length")}
        patterns = patterns_of(others, place)
        return " | ".join(self._between(lark, quote, patterns, length) for quote in _QUOTES)

    def spell_string(self, lark: Lark, value: str) -> str:
        if any(each in value for each in (self._closer, *self.forbidden) if each):
            return ""
        # JSON's escapes are valid in Python too.
        written = dict.fromkeys((json.dumps(value, ensure_ascii=False), repr(value)))
        return lark.one_of([lark.text(each) for each in written])

    def spell_key(self, lark: Lark, name: str, place: SchemaPlace) -> str:
        written = self.spell_string(lark, name)
        if not written:
            raise UnsupportedConstraint(
                f"The model cannot write the name {name} of a member.", place.param
            )
        return f"{written} {lark.text(': ')}"

    def spell_any_key(self, lark: Lark) -> str:
        ways = [self._between(lark, quote, [], "*") for quote in self.key_quotes]
        return f"{lark.one_of(ways)} {lark.text(': ')}"

    def _between(self, lark: Lark, quote: str, patterns: list[str], length: str) -> str:
        """Returns a string between quotes; it has escapes only if it need not match a pattern."""
        other = "'" if quote == '"' else '"'
        unit = f"({self.characters}{'' if patterns else f'|{other}|{_ESCAPE}'})"
        text = Text((f"{unit}{length}", *patterns))
        end = lark.text(quote)
        return f"{end} {lark.text_of([text], self._closer)} {end}"


class _Repr(PythonLiterals):
    """Writes values as Python prints them."""

    words = {True: ("True",), False: ("False",), None: ("None",)}
    characters = r"[^'\"\\<&\x00-\x1f]"
    key_quotes = _QUOTES
    forbidden = ("<", "&")


def spell_repr(lark: Lark, argument: Argument) -> str:
    """Returns the expression of a list or an object as Python prints it, without markup in its
    strings; empty if there is none, or if it would be read as a string."""
    schema, place = argument.schema, argument.place
    if allows_anything(schema) or "string" in types_of(schema, place.root):
        return ""
    try:
        parts = [
            {**flat, "type": kind}
            for flat in flat_schemas(schema, place)
            for kind in ("array", "object")
            if takes(flat, kind) and "enum" not in flat
        ]
        return spell_value(lark, _Repr(""), {"anyOf": parts}, place) if parts else ""
    except UnsupportedConstraint:
        # Such a value is only written as JSON.
        return ""
