"""Removes from the schema of a tool's arguments the parts that no value fits.

An optional property that no value fits is left out, at any depth, and so is such an option of a
choice. Clients convert their schemas from other systems, which may produce
`{"type": "integer", "enum": ["1", "any"]}`.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from node.ipc.generate import ToolSchema
from node.parsing.coercion import Schema
from node.parsing.constraints.schema import UnsupportedConstraint, arguments_schema
from node.parsing.constraints.values import (
    TABLES,
    Argument,
    Flat,
    SchemaPlace,
    declared_arguments,
    flat_schemas,
    kinds_of,
)

_CHOICES = frozenset(("anyOf", "oneOf"))
_INNER = frozenset(("items", "additionalProperties"))
_DEPTH = 64


def arguments_of(tool: ToolSchema) -> list[Argument]:
    """Returns the arguments that a tool's parameters declare and that can be written, in order.
    Raises `UnsupportedConstraint` if the parameters are not a plain object, or if no value fits a
    required one."""
    return declared_arguments(_fitting(tool), tool.param)


def object_of_arguments(tool: ToolSchema) -> Schema:
    """Returns the schema of all arguments. Raises `UnsupportedConstraint` if no value fits a
    required one."""
    return arguments_schema(_fitting(tool))


def _fitting(tool: ToolSchema) -> Schema:
    place = SchemaPlace(tool.parameters, tool.param)
    fitting = _Fitting(place)
    required, named = tool.parameters.get("required"), tool.parameters.get("properties")
    for name in required if isinstance(required, list) else ():
        if isinstance(named, Mapping) and not fitting.may_fit(named.get(name, True)):
            raise place.unsupported(
                f"the property {name}, which is required and which no value fits"
            )
    return fitting.pruned(tool.parameters)


class _Fitting:
    """Removes the parts that no value fits from one tool's parameters."""

    def __init__(self, place: SchemaPlace) -> None:
        self._place = place
        self._known: dict[str, bool] = {}

    def pruned(self, schema: Schema, depth: int = 0) -> Schema:
        """Returns the schema without the parts that no value fits."""
        if depth > _DEPTH:
            return schema
        made = dict(schema)
        for key in TABLES:
            if isinstance(table := schema.get(key), Mapping):
                made[key] = {name: self._inner(each, depth) for name, each in table.items()}
        if isinstance(named := schema.get("properties"), Mapping):
            required = schema.get("required", ())
            made["properties"] = {
                name: self._inner(each if name in required else self._or_nothing(each), depth)
                for name, each in named.items()
            }
        for key in _INNER & schema.keys():
            made[key] = self._inner(self._or_nothing(schema[key]), depth)
        for key in _CHOICES & schema.keys():
            if isinstance(parts := schema[key], list):
                fitting = list(filter(self.may_fit, parts)) or parts
                made[key] = [self._inner(each, depth) for each in fitting]
        return made

    def may_fit(self, schema: object) -> bool:
        """True if some value may fit, as far as can be determined."""
        key = json.dumps(schema)
        if key not in self._known:
            # A schema that refers to itself is assumed to end.
            self._known[key] = True
            self._known[key] = self._fits(schema)
        return self._known[key]

    def _inner(self, schema: Any, depth: int) -> Any:
        return self.pruned(schema, depth + 1) if isinstance(schema, Mapping) else schema

    def _or_nothing(self, schema: Any) -> Any:
        return schema if self.may_fit(schema) else False

    def _fits(self, schema: object) -> bool:
        if isinstance(schema, Mapping) and not isinstance(schema.get("enum", []), list):
            # An invalid schema is reported where it is spelled.
            return True
        try:
            flats = flat_schemas(schema, self._place)
        except UnsupportedConstraint:
            return True
        return any(
            "enum" in flat or any(self._takes(flat, kind) for kind in kinds_of(flat))
            for flat in flats
        )

    def _takes(self, flat: Flat, kind: str) -> bool:
        match kind:
            case "string":
                return _in_order(flat, "minLength", "maxLength")
            case "integer" | "number":
                return _has_number(flat, is_whole=kind == "integer")
            case "array":
                return _in_order(flat, "minItems", "maxItems") and self._has_item(flat)
            case "object":
                in_order = _in_order(flat, "minProperties", "maxProperties")
                return in_order and self._has_required(flat)
        return True

    def _has_item(self, flat: Flat) -> bool:
        may_be_empty = _number(flat.get("minItems"), 0) < 1
        return may_be_empty or "prefixItems" in flat or self.may_fit(flat.get("items", True))

    def _has_required(self, flat: Flat) -> bool:
        required, named = flat.get("required", ()), flat.get("properties", {})
        if not isinstance(required, list) or not isinstance(named, Mapping):
            return True
        more = True if "patternProperties" in flat else flat.get("additionalProperties", True)
        return all(self.may_fit(named.get(name, more)) for name in required)


def _number(value: object, otherwise: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return otherwise


def _in_order(flat: Flat, least: str, most: str) -> bool:
    return _number(flat.get(least), 0) <= _number(flat.get(most), math.inf)


def _has_number(flat: Flat, *, is_whole: bool) -> bool:
    """True if some number is within the bounds. Older drafts mark a bound as exclusive by a
    flag."""
    low, high = _number(flat.get("minimum"), -math.inf), _number(flat.get("maximum"), math.inf)
    above = _number(flat.get("exclusiveMinimum"), -math.inf)
    below = _number(flat.get("exclusiveMaximum"), math.inf)
    above = low if flat.get("exclusiveMinimum") is True else above
    below = high if flat.get("exclusiveMaximum") is True else below
    if is_whole and math.isfinite(max(low, above)) and math.isfinite(min(high, below)):
        low, high = math.ceil(max(low, above)), math.floor(min(high, below))
        low, high = low + (low == above), high - (high == below)
        return low <= high
    return low <= high and above < below and low < below and above < high
