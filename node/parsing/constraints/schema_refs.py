"""Facts about a JSON schema that follow from its parts and from the schemas that it refers to."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any
from urllib.parse import unquote

_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_DEPTH = 64
"""Most references and nested schemas that are followed; deeper ones count as unknown."""
_PASSES = 8


def resolved(schema: object, root: object) -> object:
    """Follows a schema that is nothing but a reference within `root`; returns any other schema
    itself."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        if len(schema) > 1 or (target := at_pointer(schema["$ref"], root)) is None:
            return schema
        schema = target
    return schema


def at_pointer(reference: str, root: object) -> object | None:
    """Returns the value at a JSON pointer such as `#/$defs/a` within `root`; None if there is
    none."""
    if reference != "#" and not reference.startswith("#/"):
        # References to named anchors are left to the library.
        return None
    at: object = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            at = at[int(step)]
        else:
            return None
    return at


# --- oneOf ------------------------------------------------------------------------------------


def is_exclusive(schemas: Sequence[object], root: object) -> bool:
    """True if it is certain that no value fits two of the schemas."""
    if len(schemas) > _DEPTH:
        return False
    return all(_excludes(one, other, root, 0) for one, other in combinations(schemas, 2))


def _excludes(one: object, other: object, root: object, depth: int) -> bool:
    one, other = resolved(one, root), resolved(other, root)
    if one is False or other is False:
        return True
    if depth > _DEPTH or not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    types, others = _types_of(one), _types_of(other)
    if not types & others:
        return True
    values, other_values = _values_of(one), _values_of(other)
    if values is not None and other_values is not None:
        return not values & other_values
    if types & others != {"object"}:
        return False
    return any(
        _excludes(one["properties"][name], other["properties"][name], root, depth + 1)
        for name in _needed(one) & _needed(other)
    )


def _types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types that values may have; number types always come together."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*map(_type_names, values))
    types = schema.get("type", list(_TYPES))
    types = {types} if isinstance(types, str) else set(types)
    if types & {"integer", "number"}:
        types |= {"integer", "number"}
    return frozenset(types)


def _type_names(value: object) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, int | float):
        return frozenset(("integer", "number"))
    if isinstance(value, str):
        return frozenset(("string",))
    if value is None:
        return frozenset(("null",))
    return frozenset(("array",) if isinstance(value, list) else ("object",))


def _values_of(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the only values that may fit, as JSON; None if the schema does not list them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return frozenset(json.dumps(_plain(each), sort_keys=True) for each in values)


def _plain(value: object) -> object:
    """Writes 1.0 as 1, at any depth."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _needed(schema: Mapping[str, Any]) -> set[str]:
    """Returns the properties that are both required and described."""
    named, required = schema.get("properties"), schema.get("required")
    if not isinstance(named, Mapping) or not isinstance(required, list):
        return set()
    return {each for each in required if isinstance(each, str) and each in named}


# --- recursion --------------------------------------------------------------------------------


def can_end(schema: object, root: object) -> bool:
    """False if it is certain that a value would have to contain itself, or that references only
    lead to each other."""
    known: set[str] = set()
    for _ in range(_PASSES):
        ends = _Ends(root, known)
        if ends.of(schema, 0):
            return True
        if not ends.found:
            return False
        known |= ends.found
    return True


class _Ends:
    """One pass that finds references to schemas with values that end."""

    def __init__(self, root: object, known: set[str]) -> None:
        self.found: set[str] = set()
        """References found in this pass."""
        self._root = root
        self._known = known
        self._tried: set[str] = set()

    def of(self, schema: object, depth: int) -> bool:
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return schema is not False
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self._leads_on(reference, depth):
            return False
        if "const" in schema or "enum" in schema:
            return True
        return all(self.of(each, depth + 1) for each in _needs(schema)) and all(
            any(self.of(each, depth + 1) for each in options)
            for key in ("anyOf", "oneOf")
            if isinstance(options := schema.get(key), list) and options
        )

    def _leads_on(self, reference: str, depth: int) -> bool:
        if reference in self._known or reference in self.found:
            return True
        if reference in self._tried:
            return False
        self._tried.add(reference)
        target = at_pointer(reference, self._root)
        # References out of the schema are left to the library to reject.
        ends = target is None or self.of(target, depth + 1)
        if ends:
            self.found.add(reference)
        return ends


def _needs(schema: Mapping[str, Any]) -> Iterator[object]:
    """Yields the schemas that apply to any value, or to a part that any value has."""
    if isinstance(schema.get("allOf"), list):
        yield from schema["allOf"]
    types = schema.get("type")
    if types in ("object", ["object"]):
        for name in sorted(_needed(schema)):
            yield schema["properties"][name]
    elif types in ("array", ["array"]):
        least = schema.get("minItems", 0)
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        yield from first[: int(least)]
        if least > len(first) and not isinstance(schema.get("items", True), list):
            yield schema.get("items", True)
