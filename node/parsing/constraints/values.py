"""Takes schemas apart until each part states plainly which values fit, for formats that do not
write values as JSON."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from node.parsing.coercion import Schema, types_of
from node.parsing.constraints.schema import UnsupportedConstraint

KINDS = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_ANNOTATIONS = frozenset(
    (
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
    )
)
"""Keywords that are annotations."""
TABLES = ("$defs", "definitions")
"""Keywords with the definitions that references point to."""
_PARTS = frozenset(("$ref", "anyOf", "oneOf", "allOf"))
_UNSUPPORTED = frozenset(("not", "if", "then", "else", "$dynamicRef", "$recursiveRef"))
OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
"""Keywords about numbers."""
_OF_OBJECTS = frozenset(
    (
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "enum",
        "propertyNames",
    )
)
"""Keywords by which members depend on each other, or on their names."""
OF_LISTS = frozenset(
    ("prefixItems", "contains", "uniqueItems", "additionalItems", "unevaluatedItems")
)
"""Keywords by which items depend on each other, or on their position."""
_LARGEST = {"minLength", "minItems", "minimum", "minProperties"}
_SMALLEST = {"maxLength", "maxItems", "maximum", "maxProperties"}
_DEPTH = 16
_MOST_PARTS = 64

Flat = dict[str, Any]
"""A schema without references and choices at its top level."""


class SchemaPlace(NamedTuple):
    """The context of a schema."""

    root: Schema
    """The schema that references point into."""
    param: str
    """The body's field, for errors."""

    def unsupported(self, what: str) -> UnsupportedConstraint:
        return UnsupportedConstraint(
            f"The model's calls cannot be constrained to {what}.", self.param
        )


class Argument(NamedTuple):
    name: str
    schema: object
    is_required: bool
    place: SchemaPlace


def declared_arguments(parameters: Schema, param: str) -> list[Argument]:
    """Returns the arguments that a tool's parameters declare, in order. Raises
    `UnsupportedConstraint` if the parameters are not a plain object."""
    place = SchemaPlace(parameters, param)
    return members_of(_top(parameters, place), place)


def members_of(flat: Flat, place: SchemaPlace) -> list[Argument]:
    """Returns the declared properties of an object, in order, and the other required ones. Raises
    `UnsupportedConstraint`."""
    properties = flat.get("properties", {})
    required = flat.get("required", ())
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
        raise place.unsupported("properties that are not an object")
    if found := _OF_OBJECTS & flat.keys():
        raise place.unsupported(f"the keyword {min(found)}")
    names = dict(properties)
    names.update((name, _more(flat, name, place)) for name in required if name not in names)
    for pattern in flat.get("patternProperties", {}):
        if _may_match(pattern, names):
            raise place.unsupported("the keyword patternProperties")
    fewest, most = flat.get("minProperties", 0), flat.get("maxProperties", len(names))
    if fewest > len(required) or most < len(names):
        raise place.unsupported("a number of properties")
    return [
        Argument(name, schema, name in required, place)
        for name, schema in names.items()
        if schema is not False or name in required
    ]


def _may_match(pattern: str, names: Iterable[str]) -> bool:
    try:
        return any(re.search(pattern, name) for name in names)
    except re.error:
        # The pattern may be in another syntax.
        return True


def kinds_of(flat: Flat) -> frozenset[str]:
    """Returns the JSON types that the schema allows."""
    found = types_of({key: flat[key] for key in ("type", "enum", "properties") if key in flat})
    return found or KINDS


def takes(flat: Flat, kind: str) -> bool:
    """True if a value of the JSON type may fit."""
    if "enum" in flat:
        return any(has_type(value, {kind}) for value in flat["enum"])
    return kind in kinds_of(flat)


def repetition(flat: Flat, *, fewest: int = 0) -> str:
    """Returns the repetition in a grammar for the number of a list's items."""
    most = flat.get("maxItems")
    fewest = max(fewest, int(flat.get("minItems", 0)))
    return f"{{{fewest},{'' if most is None else int(most)}}}"


def restricts_numbers(flat: Flat) -> bool:
    """True if the schema restricts numbers."""
    return bool(OF_NUMBERS & flat.keys())


def allows_anything(schema: object) -> bool:
    """True if any value fits."""
    return schema is True or (isinstance(schema, Mapping) and not schema.keys() - _ANNOTATIONS)


def flat_schemas(schema: object, place: SchemaPlace, depth: int = 0) -> list[Flat]:
    """Returns the alternatives of a schema: a value must fit one of them. Raises
    `UnsupportedConstraint`."""
    if schema is False:
        return []
    if schema is True or schema is None:
        return [{}]
    if not isinstance(schema, Mapping):
        raise place.unsupported("a schema that is not an object")
    if depth > _DEPTH:
        raise place.unsupported("a schema that refers to itself without an end")
    if unsupported := _UNSUPPORTED & schema.keys():
        raise place.unsupported(f"the keyword {min(unsupported)}")
    found = [_own(schema)]
    for part in _parts(schema, place, depth + 1):
        found = [both for a in found for b in part if (both := _both(a, b, place)) is not None]
        if len(found) > _MOST_PARTS:
            raise place.unsupported("so many choices")
    return [flat for flat in found if flat.get("enum") != []]


def with_definitions(schema: object, place: SchemaPlace) -> object:
    """Returns the schema with the definitions that its references point to. Raises
    `UnsupportedConstraint`."""
    if not isinstance(schema, Mapping) or '"$ref"' not in json.dumps(schema):
        return schema
    tables = {key: place.root[key] for key in TABLES if key in place.root}
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps((schema, tables))):
        if not reference.startswith(("#/$defs/", "#/definitions/")):
            raise place.unsupported(f"the reference {reference}")
    return {**schema, **tables}


def _top(parameters: Schema, place: SchemaPlace) -> Flat:
    """Returns the schema that declares the arguments, where a reader looks for it."""
    reference = parameters.get("$ref")
    schema: object = parameters if reference is None else _target(reference, place)
    if not isinstance(schema, Mapping) or (found := schema.keys() & (_PARTS | _UNSUPPORTED)):
        keyword = min(found) if isinstance(schema, Mapping) else "$ref"
        raise place.unsupported(f"parameters with the keyword {keyword} at their top")
    if "object" not in (types_of({"type": schema.get("type", "object")}) or {"object"}):
        raise place.unsupported("parameters that are not an object")
    return _own(schema)


def _more(flat: Flat, name: str, place: SchemaPlace) -> object:
    """Returns the schema of a required property that is not declared."""
    more = flat.get("additionalProperties", True)
    if more is False:
        raise place.unsupported(f"the property {name}, which is required and not allowed")
    return more


def _own(schema: Schema) -> Flat:
    """Returns the schema's own keywords, with `const` as an `enum` of one value."""
    own = {key: value for key, value in schema.items() if key not in _ANNOTATIONS | _PARTS}
    if "const" in own:
        value = own.pop("const")
        own["enum"] = [value] if _is_in(value, own.get("enum", [value])) else []
    if "enum" in own and not isinstance(own["enum"], list):
        own["enum"] = []
    if "enum" in own and "type" in own:
        types = types_of({"type": own["type"]})
        own["enum"] = [each for each in own["enum"] if not types or has_type(each, types)]
    return own


def _parts(schema: Schema, place: SchemaPlace, depth: int) -> list[list[Flat]]:
    """Returns the alternatives from references and choices; a value must also fit one from each
    list."""
    parts = []
    if "$ref" in schema:
        parts.append(flat_schemas(_target(schema["$ref"], place), place, depth))
    parts += [flat_schemas(each, place, depth) for each in _list(schema, "allOf")]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            each = [flat_schemas(each, place, depth) for each in _list(schema, key)]
            if key == "oneOf" and not _are_apart([flat for some in each for flat in some]):
                raise place.unsupported("the keyword oneOf, of which several may fit")
            parts.append([flat for some in each for flat in some])
    return parts


def _list(schema: Schema, key: str) -> list[object]:
    value = schema.get(key, [])
    return value if isinstance(value, list) else []


def _are_apart(flats: list[Flat]) -> bool:
    """True if no value fits two of them, as far as their types and values show."""
    for at, flat in enumerate(flats):
        for other in flats[:at]:
            if "enum" in flat and "enum" in other:
                if any(_is_in(each, other["enum"]) for each in flat["enum"]):
                    return False
            elif _common(kinds_of(flat), kinds_of(other)):
                return False
    return True


def _target(reference: object, place: SchemaPlace) -> object:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise place.unsupported(f"the reference {reference}")
    found: object = place.root
    for step in filter(None, reference[1:].split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise place.unsupported(f"the reference {reference}")
        found = found[name]
    return found


def _both(a: Flat, b: Flat, place: SchemaPlace) -> Flat | None:
    """Returns the conjunction of two schemas; None if no value fits it. Raises
    `UnsupportedConstraint`."""
    both = {**a, **b}
    for key in a.keys() & b.keys():
        if a[key] != b[key]:
            both[key] = _both_say(key, a[key], b[key], place)
    if "enum" in both and "type" in both:
        both["enum"] = [each for each in both["enum"] if has_type(each, types_of(both))]
    return None if both.get("type") == [] or both.get("enum") == [] else both


def _both_say(key: str, a: Any, b: Any, place: SchemaPlace) -> object:
    """Returns the conjunction of a keyword's two values."""
    if key == "type":
        return sorted(_common(kinds_of({key: a}), kinds_of({key: b})))
    if key == "enum":
        return [each for each in a if _is_in(each, b)]
    if key == "required":
        return [*a, *(name for name in b if name not in a)]
    if key == "properties":
        return {**a, **b, **{name: {"allOf": [a[name], b[name]]} for name in a.keys() & b.keys()}}
    if key in _LARGEST | _SMALLEST:
        return (max if key in _LARGEST else min)(a, b)
    raise place.unsupported(f"the keyword {key}, given twice")


def _common(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    """Returns the types that are in both sets; an integer is a number."""
    common = _with_integers(a) & _with_integers(b)
    return common - {"integer"} if "number" in common else common


def _with_integers(types: Set[str]) -> frozenset[str]:
    return frozenset(types) | {"integer"} if "number" in types else frozenset(types)


def has_type(value: object, types: Set[str]) -> bool:
    """True if a JSON value has one of the types."""
    if isinstance(value, float) and value.is_integer():
        return bool(types & {"integer", "number"})
    return bool(types_of({"enum": [value]}) & _with_integers(types))


def _is_in(value: object, values: Sequence[object]) -> bool:
    """True if a JSON value is one of the others; True does not equal 1."""
    text = json.dumps(value, sort_keys=True)
    return any(json.dumps(each, sort_keys=True) == text for each in values)
