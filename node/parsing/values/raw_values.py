"""Spells values without quotes: strings as they are, everything else as JSON.

A reader distinguishes the two by the schema (`coercion`), and if that allows strings and more, by
what the text spells. A string is therefore constrained to texts that are read back as the same
string.
"""

import json
import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from node.parsing.coercion import typed, types_of
from node.parsing.constraints.guarded_schema import guarded
from node.parsing.constraints.lark import Lark, Text
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.text_patterns import patterns_of, restricts_text, values_of
from node.parsing.constraints.values import (
    TABLES,
    Argument,
    Flat,
    SchemaPlace,
    allows_anything,
    flat_schemas,
    has_type,
    restricts_numbers,
    takes,
    with_definitions,
)
from node.parsing.values.bare_arguments import QUOTED

SPACE = r"[\s\x1c-\x1f]*"
INTEGER = r"-?(0|[1-9][0-9]{0,17})"
NUMBER = INTEGER + r"(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?"
"""Pattern of numbers that every reader can represent."""
SCALARS = {"integer": INTEGER, "number": NUMBER, "boolean": "true|false", "null": "null"}
_READ_AS = {
    "integer": rf"{SPACE}-?[0-9][0-9.eE+-]*{SPACE}",
    "number": rf"{SPACE}-?[0-9][0-9.eE+-]*{SPACE}",
    "boolean": rf"{SPACE}(true|false){SPACE}",
    "null": rf"{SPACE}(null|None){SPACE}",
    "object": rf"{SPACE}\{{(.|\n)*",
    "array": rf"{SPACE}\[(.|\n)*",
}
"""Patterns of all texts, and more, that a reader may take for a value of the type."""


class RawText(NamedTuple):
    """The context of bare text."""

    closer: str
    """The text that ends it."""
    forbidden: tuple[str, ...] = ()
    """Other texts that it may not contain."""
    without: tuple[str, ...] = ()
    """Patterns of texts that would be read as something else."""
    in_json: tuple[str, ...] = ()
    """Texts that strings in JSON may not contain, in place of the closer and `forbidden`. All begin
    with one character, which does not occur in them again."""
    loose: tuple[str, ...] = (QUOTED,)
    """Patterns of texts that are read as another string; allowed only if any string fits."""


def spell_raw(lark: Lark, argument: Argument, raw: RawText) -> str:
    """Returns the expression of an argument's value and the text that ends it. Raises
    `UnsupportedConstraint`."""
    ways = [
        way for way in (spell_text(lark, argument, raw), spell_json(lark, argument, raw)) if way
    ]
    if not ways:
        raise argument.place.unsupported(
            f"a value of {argument.name}, which the model cannot write"
        )
    return lark.one_of(ways) if len(ways) > 1 else ways[0]


def in_order(
    lark: Lark,
    written: Sequence[tuple[str, bool]],
    separator: str = "",
    *,
    may_be_empty: bool = True,
) -> str:
    """Returns the expression of expressions in a row, with the expression `separator` between them.
    Those that are not marked as required may be missing, though not all of them unless
    `may_be_empty`. Empty if there are none."""
    some, more = '""' if written and may_be_empty else "", ""
    for expression, is_required in reversed(written):
        begun = f"{expression} {more}".rstrip()
        if is_required:
            some, more = begun, lark.rule(f"{separator} {begun}")
        else:
            some = lark.one_of([begun, some] if some else [begun])
            more = lark.rule(f"{lark.optional(f'{separator} {expression}')} {more}")
    return some


def written_name(name: str, characters: str, place: SchemaPlace) -> str:
    """Returns the name of an argument, to be written without quotes. Raises `UnsupportedConstraint`
    for a name that does not match the pattern, since it would not be read back."""
    if not re.fullmatch(characters, name):
        raise UnsupportedConstraint(
            f"The model cannot write the name {name} of an argument.", place.param
        )
    return name


def is_simple(argument: Argument) -> bool:
    """True if the argument allows only numbers and words."""
    types = types_of(argument.schema, argument.place.root)
    return bool(types) and types <= SCALARS.keys()


def takes_text(argument: Argument) -> bool:
    """True if the argument's value may be bare text."""
    return "string" in types_of(argument.schema, argument.place.root) or allows_anything(
        argument.schema
    )


def spell_json(lark: Lark, argument: Argument, raw: RawText) -> str:
    """Returns the expression of a value in JSON and the text that ends it; empty if only text is
    allowed, or if text spells every value. Raises `UnsupportedConstraint`."""
    schema, place = argument.schema, argument.place
    if allows_anything(schema):
        return ""
    types = types_of(schema, place.root)
    scalars = _scalars(argument)
    left = frozenset(kind for kind in types - {"string"} if scalars.get(kind) is None)
    if types and not left:
        if "string" in types:
            return ""
        plain = "|".join(f"({each})" for each in scalars.values() if each)
        return f"{lark.regex(plain)} {lark.text(raw.closer)}"
    return _json(lark, argument, raw, left if "string" in types else types)


def spell_string(lark: Lark, argument: Argument, raw: RawText) -> str:
    """Returns the expression of a value that is certainly read as a string, and the text that ends
    it; empty if it may not be a string. Raises `UnsupportedConstraint`."""
    if not takes_text(argument):
        return ""
    texts = [Text()] if allows_anything(argument.schema) else _strings(argument, raw, ())
    return _until(lark, texts, raw)


def spell_other(lark: Lark, argument: Argument, raw: RawText) -> str:
    """Returns the expression of a value that is read as JSON, and the text that ends it; empty if
    it may only be a string. Raises `UnsupportedConstraint`."""
    types = types_of(argument.schema, argument.place.root)
    flats = flat_schemas(argument.schema, argument.place)
    left = types - {"string"}
    if "string" in types and not any(takes(flat, kind) for flat in flats for kind in left):
        return ""
    return _json(lark, argument, raw, left)


def _json(lark: Lark, argument: Argument, raw: RawText, types: Set[str]) -> str:
    """Returns a value of one of the types, which are all that the schema allows, or all but
    strings."""
    place = argument.place
    texts = raw.in_json or (raw.closer.strip("\n"), *raw.forbidden)
    schema = guarded(with_definitions(argument.schema, place), texts)
    if "string" in types_of(argument.schema, place.root):
        tables: dict[str, Any] = {key: schema.pop(key) for key in TABLES if key in schema}
        schema = {"allOf": [schema, {"type": sorted(types)}], **tables}
    return f"{lark.json(schema, place.param)} {lark.text(raw.closer)}"


def texts_of(argument: Argument, raw: RawText) -> list[Text]:
    """Returns the values as bare text, which may spell numbers and words too; empty if the value
    may not be a string. Raises `UnsupportedConstraint`."""
    if not takes_text(argument):
        return []
    if allows_anything(argument.schema):
        return [Text()]
    place = argument.place
    others = types_of(argument.schema, place.root) - {"string"}
    scalars = _scalars(argument)
    strings = _string_schemas(argument)
    is_restricted = any(restricts_text(flat, place) for flat in strings)
    if (
        strings
        and not is_restricted
        and all(scalars.get(kind) == SCALARS.get(kind, "") for kind in others)
    ):
        # Any way of reading the text gives a value that fits.
        return [Text()]
    unread = [_READ_AS[kind] for kind in sorted(others)]
    texts = [Text((each,)) for each in scalars.values() if each]
    return texts + _strings(argument, raw, (*unread, *(raw.loose if is_restricted else ())))


def spell_text(lark: Lark, argument: Argument, raw: RawText) -> str:
    """Returns the expression of a value as bare text and the text that ends it; empty if the value
    may not be a string. Raises `UnsupportedConstraint`."""
    return _until(lark, texts_of(argument, raw), raw)


def _until(lark: Lark, texts: Sequence[Text], raw: RawText) -> str:
    return lark.text_until(texts, raw.closer, raw.forbidden, raw.without) if texts else ""


def _string_schemas(argument: Argument) -> list[Flat]:
    flats = flat_schemas(argument.schema, argument.place)
    return [flat for flat in flats if takes(flat, "string")]


def _strings(argument: Argument, raw: RawText, unread: tuple[str, ...]) -> list[Text]:
    """Returns the strings that fit, except for those that match the patterns `unread`."""
    texts = []
    for flat in _string_schemas(argument):
        if "enum" in flat:
            values = [
                each
                for each in values_of(flat, argument.place)
                if _is_writable(each, argument, raw)
            ]
            texts += [Text((re.escape(each),)) for each in values]
        else:
            texts.append(Text(tuple(patterns_of(flat, argument.place)), unread))
    return texts


def _scalars(argument: Argument) -> dict[str, str | None]:
    """Returns the patterns of the simple types that the argument allows besides strings."""
    types = types_of(argument.schema, argument.place.root) & SCALARS.keys()
    flats = flat_schemas(argument.schema, argument.place) if types else []
    return {kind: scalar_pattern(flats, kind) for kind in sorted(types)}


def scalar_pattern(flats: Sequence[Flat], kind: str) -> str | None:
    """Returns the pattern of all values of a simple type that fit, empty if there are none; None if
    no pattern can express it."""
    taking = [flat for flat in flats if takes(flat, kind)]
    if taking and all("enum" not in flat and not restricts_numbers(flat) for flat in taking):
        return SCALARS[kind]
    if all("enum" in flat for flat in taking):
        values = [value for flat in taking for value in flat["enum"] if has_type(value, {kind})]
        return "|".join(re.escape(json.dumps(value)) for value in values)
    return None


def _is_writable(value: str, argument: Argument, raw: RawText) -> bool:
    """True if a string is read back as itself."""
    if any(each in value for each in (raw.closer, *raw.forbidden)):
        return False
    if any(re.fullmatch(each, value) for each in (*raw.without, *raw.loose)):
        return False
    return bool(typed(value, argument.schema, argument.place.root) == value)
