"""How formats write values without quotes: strings as they are, all else as JSON.

A reader tells the two apart by the schema (`coercion`), and where that takes strings and more, by
what the text spells. So a string is held to what is read back as the same string.
"""

import json
import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from node.parsing.coercion import typed, types_of
from node.parsing.constraints.guarded_schema import guarded
from node.parsing.constraints.lark import Lark, Text
from node.parsing.constraints.schema import NotHeld
from node.parsing.constraints.text_patterns import is_held_text, patterns_of, values_of
from node.parsing.constraints.values import (
    TABLES,
    Argument,
    Flat,
    Place,
    document,
    flat_schemas,
    is_held_number,
    is_of,
    says_nothing,
    takes,
)
from node.parsing.values.bare_arguments import QUOTED

SPACE = r"[\s\x1c-\x1f]*"
INTEGER = r"-?(0|[1-9][0-9]{0,17})"
NUMBER = INTEGER + r"(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?"
"""Numbers that every reader has room for."""
SCALARS = {"integer": INTEGER, "number": NUMBER, "boolean": "true|false", "null": "null"}
_READ_AS = {
    "integer": rf"{SPACE}-?[0-9][0-9.eE+-]*{SPACE}",
    "number": rf"{SPACE}-?[0-9][0-9.eE+-]*{SPACE}",
    "boolean": rf"{SPACE}(true|false){SPACE}",
    "null": rf"{SPACE}(null|None){SPACE}",
    "object": rf"{SPACE}\{{(.|\n)*",
    "array": rf"{SPACE}\[(.|\n)*",
}
"""Texts that a reader may take for a value of the type, all of them and more."""


class RawText(NamedTuple):
    """Where bare text stands."""

    closer: str
    """What ends it."""
    forbidden: tuple[str, ...] = ()
    """What it may not hold besides the closer."""
    without: tuple[str, ...] = ()
    """Patterns of texts that would be read as something else."""
    in_json: tuple[str, ...] = ()
    """What strings of JSON may not hold, if not the closer and what is forbidden. All begin with
    one character, which none of them holds again."""
    loose: tuple[str, ...] = (QUOTED,)
    """Patterns of texts that are read as another string: only where any will do may they come."""


def spell_raw(lark: Lark, argument: Argument, raw: RawText) -> str:
    """The expression of an argument's value and what ends it. Raises `NotHeld`."""
    ways = [
        way for way in (spell_text(lark, argument, raw), spell_json(lark, argument, raw)) if way
    ]
    if not ways:
        raise argument.place.not_held(f"a value of {argument.name}, which the model cannot write")
    return lark.one_of(ways) if len(ways) > 1 else ways[0]


def in_order(
    lark: Lark,
    written: Sequence[tuple[str, bool]],
    separator: str = "",
    *,
    may_be_empty: bool = True,
) -> str:
    """The expression of expressions in a row, with the expression `separator` between them; those
    that are not marked as required may be missing, but for at least one if not `may_be_empty`.
    Empty where there are none."""
    some, more = '""' if written and may_be_empty else "", ""
    for expression, is_required in reversed(written):
        begun = f"{expression} {more}".rstrip()
        if is_required:
            some, more = begun, lark.rule(f"{separator} {begun}")
        else:
            some = lark.one_of([begun, some] if some else [begun])
            more = lark.rule(f"{lark.optional(f'{separator} {expression}')} {more}")
    return some


def written_name(name: str, characters: str, place: Place) -> str:
    """The name of an argument, to stand without quotes. Raises `NotHeld` for one that does not
    match the pattern, which is not read back."""
    if not re.fullmatch(characters, name):
        raise NotHeld(f"The model cannot write the name {name} of an argument.", place.param)
    return name


def is_simple(argument: Argument) -> bool:
    """Whether it takes only numbers and words."""
    types = types_of(argument.schema, argument.place.root)
    return bool(types) and types <= SCALARS.keys()


def takes_text(argument: Argument) -> bool:
    """Whether its value may be bare text."""
    return "string" in types_of(argument.schema, argument.place.root) or says_nothing(
        argument.schema
    )


def spell_json(lark: Lark, argument: Argument, raw: RawText) -> str:
    """The expression of a value in JSON, and what ends it; empty where only text may stand, or
    where text spells all of it. Raises `NotHeld`."""
    schema, place = argument.schema, argument.place
    if says_nothing(schema):
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
    """The expression of a value that is surely read as a string, and what ends it; empty where it
    may not be one. Raises `NotHeld`."""
    if not takes_text(argument):
        return ""
    texts = [Text()] if says_nothing(argument.schema) else _strings(argument, raw, ())
    return _until(lark, texts, raw)


def spell_other(lark: Lark, argument: Argument, raw: RawText) -> str:
    """The expression of a value that is read as JSON, and what ends it; empty where it may only
    be a string. Raises `NotHeld`."""
    types = types_of(argument.schema, argument.place.root)
    flats = flat_schemas(argument.schema, argument.place)
    left = types - {"string"}
    if "string" in types and not any(takes(flat, kind) for flat in flats for kind in left):
        return ""
    return _json(lark, argument, raw, left)


def _json(lark: Lark, argument: Argument, raw: RawText, types: Set[str]) -> str:
    """A value of one of the types, which are all that there are, or none of them strings."""
    place = argument.place
    texts = raw.in_json or (raw.closer.strip("\n"), *raw.forbidden)
    schema = guarded(document(argument.schema, place), texts)
    if "string" in types_of(argument.schema, place.root):
        tables: dict[str, Any] = {key: schema.pop(key) for key in TABLES if key in schema}
        schema = {"allOf": [schema, {"type": sorted(types)}], **tables}
    return f"{lark.json(schema, place.param)} {lark.text(raw.closer)}"


def texts_of(argument: Argument, raw: RawText) -> list[Text]:
    """A value as bare text, which may spell numbers and words too; none where it may not be a
    string. Raises `NotHeld`."""
    if not takes_text(argument):
        return []
    if says_nothing(argument.schema):
        return [Text()]
    place = argument.place
    others = types_of(argument.schema, place.root) - {"string"}
    scalars = _scalars(argument)
    strings = _string_schemas(argument)
    is_held = any(is_held_text(flat, place) for flat in strings)
    if (
        strings
        and not is_held
        and all(scalars.get(kind) == SCALARS.get(kind, "") for kind in others)
    ):
        # Whatever it is read as, fits.
        return [Text()]
    unread = [_READ_AS[kind] for kind in sorted(others)]
    texts = [Text((each,)) for each in scalars.values() if each]
    return texts + _strings(argument, raw, (*unread, *(raw.loose if is_held else ())))


def spell_text(lark: Lark, argument: Argument, raw: RawText) -> str:
    """The expression of a value as bare text, and what ends it; empty where it may not be a
    string. Raises `NotHeld`."""
    return _until(lark, texts_of(argument, raw), raw)


def _until(lark: Lark, texts: Sequence[Text], raw: RawText) -> str:
    return lark.held_until(texts, raw.closer, raw.forbidden, raw.without) if texts else ""


def _string_schemas(argument: Argument) -> list[Flat]:
    flats = flat_schemas(argument.schema, argument.place)
    return [flat for flat in flats if takes(flat, "string")]


def _strings(argument: Argument, raw: RawText, unread: tuple[str, ...]) -> list[Text]:
    """The strings that fit, but for those that match the patterns `unread`."""
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
    """Of the simple types that it takes besides strings, the patterns."""
    types = types_of(argument.schema, argument.place.root) & SCALARS.keys()
    flats = flat_schemas(argument.schema, argument.place) if types else []
    return {kind: scalar_pattern(flats, kind) for kind in sorted(types)}


def scalar_pattern(flats: Sequence[Flat], kind: str) -> str | None:
    """The pattern of all values of a simple type that fit, empty where there are none; None where
    no pattern can say it."""
    said = [flat for flat in flats if takes(flat, kind)]
    if said and all("enum" not in flat and not is_held_number(flat) for flat in said):
        return SCALARS[kind]
    if all("enum" in flat for flat in said):
        values = [value for flat in said for value in flat["enum"] if is_of(value, {kind})]
        return "|".join(re.escape(json.dumps(value)) for value in values)
    return None


def _is_writable(value: str, argument: Argument, raw: RawText) -> bool:
    """Whether a string is read back as itself."""
    if any(each in value for each in (raw.closer, *raw.forbidden)):
        return False
    if any(re.fullmatch(each, value) for each in (*raw.without, *raw.loose)):
        return False
    return bool(typed(value, argument.schema, argument.place.root) == value)
