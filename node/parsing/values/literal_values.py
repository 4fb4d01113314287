"""Spells values as literals of a language other than JSON, constrained to a schema."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.values import (
    OF_LISTS,
    OF_NUMBERS,
    Argument,
    Flat,
    SchemaPlace,
    flat_schemas,
    kinds_of,
    members_of,
    restricts_numbers,
)
from node.parsing.values.raw_values import SCALARS, in_order


class Language(Protocol):
    """Defines how values are written."""

    words: Mapping[object, Sequence[str]]
    """Spellings of True, False and None."""
    separator: str
    """Text between items and between members."""
    sorts: bool = False
    """True if members are written in the order of their names, ignoring case."""

    def spell_text(self, lark: Lark, flat: Flat, place: SchemaPlace) -> str:
        """Returns the expression of a string that fits. Raises `UnsupportedConstraint`."""
        ...

    def spell_string(self, lark: Lark, value: str) -> str:
        """Returns the expression of one string; empty if it cannot be written."""
        ...

    def spell_key(self, lark: Lark, name: str, place: SchemaPlace) -> str:
        """Returns the expression of a member's name with the separator before its value. Raises
        `UnsupportedConstraint`."""
        ...

    def spell_any_key(self, lark: Lark) -> str:
        """Like `spell_key`, for any name."""
        ...


def spell_value(lark: Lark, language: Language, schema: object, place: SchemaPlace) -> str:
    """Returns the expression of a value that fits the schema. Raises `UnsupportedConstraint`."""
    ways = []
    for flat in flat_schemas(schema, place):
        key = json.dumps((place.param, flat), sort_keys=True)
        ways.append(lark.shared(key, partial(_spell_flat, lark, language, flat, place)))
    if not ways:
        raise place.unsupported("a schema that no value fits")
    return lark.one_of(ways)


def spell_members(lark: Lark, language: Language, members: Sequence[Argument]) -> str:
    """Returns the expression of names and values, in order. Raises `UnsupportedConstraint`."""
    written = []
    if language.sorts:
        members = sorted(members, key=lambda member: member.name.lower())
    for name, schema, is_required, place in members:
        value = spell_value(lark, language, schema, place)
        written.append((f"{language.spell_key(lark, name, place)} {value}", is_required))
    return in_order(lark, written, lark.text(language.separator))


def _spell_flat(lark: Lark, language: Language, flat: Flat, place: SchemaPlace) -> str:
    if "enum" in flat:
        values = [_spell_literal(lark, language, value) for value in flat["enum"]]
        ways = list(filter(None, values))
    else:
        kinds = kinds_of(flat)
        kinds -= {"integer"} if "number" in kinds else set()
        ways = [_spell_kind(lark, language, flat, kind, place) for kind in sorted(kinds)]
    if not ways:
        raise UnsupportedConstraint("The model cannot write any of the values.", place.param)
    return " | ".join(ways)


def _spell_kind(lark: Lark, language: Language, flat: Flat, kind: str, place: SchemaPlace) -> str:
    if kind == "string":
        return language.spell_text(lark, flat, place)
    if kind == "array":
        return _spell_list(lark, language, flat, place)
    if kind == "object":
        return _spell_object(lark, language, flat, place)
    if kind == "boolean":
        return " | ".join(_spell_word(lark, language, each) for each in (True, False))
    if kind == "null":
        return _spell_word(lark, language, None)
    if not restricts_numbers(flat):
        return lark.regex(SCALARS[kind])
    keywords = {key: value for key, value in flat.items() if key in OF_NUMBERS}
    return lark.json({**keywords, "type": kind}, place.param)


def _spell_list(lark: Lark, language: Language, flat: Flat, place: SchemaPlace) -> str:
    if keywords := [key for key in flat if key in OF_LISTS and flat[key] is not False]:
        raise place.unsupported(f"the keyword {min(keywords)}")
    fewest, most = int(flat.get("minItems", 0)), flat.get("maxItems")
    items, nothing = flat.get("items", True), lark.text("[]")
    if most == 0 or items is False:
        return nothing
    item = spell_value(lark, language, items, place)
    more = f"{{{max(fewest - 1, 0)},{'' if most is None else int(most) - 1}}}"
    some = f"{item} ({lark.text(language.separator)} {item}){more}"
    listed = f"{lark.text('[')} {some} {lark.text(']')}"
    return listed if fewest else f"{nothing} | {listed}"


def _spell_object(lark: Lark, language: Language, flat: Flat, place: SchemaPlace) -> str:
    members = members_of(flat, place)
    begin, end = lark.text("{"), lark.text("}")
    more = flat.get("additionalProperties", True)
    if members or more is False:
        return f"{begin} {spell_members(lark, language, members)} {end}"
    if flat.get("patternProperties"):
        raise place.unsupported("the keyword patternProperties")
    member = f"{language.spell_any_key(lark)} {spell_value(lark, language, more, place)}"
    return f"{begin} {end} | {begin} {lark.many(member, lark.text(language.separator))} {end}"


def _spell_literal(lark: Lark, language: Language, value: Any) -> str:
    """Returns the expression of one value; empty if it cannot be written."""
    if isinstance(value, str):
        return language.spell_string(lark, value)
    if isinstance(value, list | dict):
        return ""
    if value is None or isinstance(value, bool):
        return _spell_word(lark, language, value)
    return lark.text(json.dumps(value))


def _spell_word(lark: Lark, language: Language, value: object) -> str:
    return lark.one_of([lark.text(each) for each in language.words[value]])
