"""Schemas of JSON within markup: no string may contain the texts that would end it."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from node.parsing.coercion import types_of
from node.parsing.constraints.values import allows_anything

_ANY = "-any"
"""Name of the definition that any guarded value fits."""
_LARGEST = 10**18
"""Largest number; beyond it, some readers cannot represent it."""
_CHOICES = ("anyOf", "oneOf", "allOf", "prefixItems")
_CHECKED_ELSEWHERE = frozenset(("enum", "const", "$ref", "anyOf", "oneOf", "allOf"))
_TABLES = ("$defs", "definitions", "properties")


def guarded(schema: object, texts: Sequence[str]) -> dict[str, Any]:
    """Returns the schema of values whose strings and names contain none of the texts, and whose
    numbers every reader can represent. Objects that declare members have no others. All texts must
    begin with one character, which may not occur in them again."""
    assert all(text[0] == texts[0][0] not in text[1:] for text in texts), texts
    guard = _Guard(f"^{_without(texts)}$")
    result = guard.schema(schema)
    if guard.is_used:
        result["$defs"] = {**result.get("$defs", {}), _ANY: guard.any_value()}
    return result


class _Guard:
    def __init__(self, pattern: str) -> None:
        self.is_used = False
        """True if some part of the schema allows any value."""
        self._pattern = pattern

    def schema(self, schema: object) -> dict[str, Any]:
        if allows_anything(schema):
            return self._any()
        if not isinstance(schema, Mapping):
            return {"allOf": [schema]}
        result = {key: self._within(key, value) for key, value in schema.items()}
        if _CHECKED_ELSEWHERE & result.keys():
            return result
        types = types_of(result)
        if not types:
            return {"allOf": [result, self._any()]}
        self._guard_simple(result, types)
        if "array" in types:
            result["items"] = self._inner(result.get("items", True))
        if "object" in types:
            self._guard_members(result)
        return result

    def _within(self, key: str, value: Any) -> Any:
        if key in _CHOICES and isinstance(value, list):
            return [self._inner(part) for part in value]
        if key in _TABLES and isinstance(value, Mapping):
            return {name: self._inner(each) for name, each in value.items()}
        return value

    def _guard_simple(self, result: dict[str, Any], types: Set[str]) -> None:
        if "string" in types:
            if "pattern" in result:
                result["allOf"] = [{"type": "string", "pattern": self._pattern}]
            else:
                result["pattern"] = self._pattern
        if "number" in types and not any("inimum" in key or "aximum" in key for key in result):
            result.update(minimum=-_LARGEST, maximum=_LARGEST)

    def any_value(self) -> dict[str, Any]:
        """Returns the schema that all guarded values fit."""
        any_ = {"$ref": f"#/$defs/{_ANY}"}
        return {
            "anyOf": [
                {"type": "string", "pattern": self._pattern},
                {"type": ["boolean", "null", "integer"]},
                {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
                {"type": "array", "items": any_},
                {
                    "type": "object",
                    "patternProperties": {self._pattern: any_},
                    "additionalProperties": False,
                },
            ]
        }

    def _any(self) -> dict[str, Any]:
        self.is_used = True
        return {"$ref": f"#/$defs/{_ANY}"}

    def _inner(self, schema: object) -> object:
        """Guards a schema within another. Anything that is not a schema is kept, to be rejected
        later."""
        return self.schema(schema) if schema is True or isinstance(schema, Mapping) else schema

    def _guard_members(self, result: dict[str, Any]) -> None:
        named = result.get("properties", {})
        more = result.pop("additionalProperties", True)
        if set(result.get("required", ())) - named.keys():
            result["additionalProperties"] = self._inner(more)
            return
        result["additionalProperties"] = False
        if more is not False and not named and "patternProperties" not in result:
            result["patternProperties"] = {self._pattern: self._inner(more)}


def _without(texts: Sequence[str]) -> str:
    """Returns the pattern of strings that contain none of the texts."""
    first = re.escape(texts[0][0])
    rests = sorted({text[1:] for text in texts})
    leaves, stops = _leaves(rests, first), _stops(rests)
    begun = f"{first}{stops}"
    return f"(?:[^{first}]|(?:{begun})*{first}{leaves})*(?:{begun})*"


def _leaves(rests: Sequence[str], first: str) -> str:
    """Returns the pattern that continues a text's start until it cannot be one of the texts, up to
    a character that begins none."""
    by_char = _by_char(rests)
    others = "".join(map(re.escape, by_char))
    ways = [f"[^{first}{others}]"]
    for char, inner in by_char.items():
        if "" not in inner:
            ways.append(f"{re.escape(char)}{_leaves(inner, first)}")
    return f"(?:{'|'.join(ways)})"


def _stops(rests: Sequence[str]) -> str:
    """Returns the pattern of the part of a text that may stand before another text's start, or at
    the end."""
    ways = [
        f"{re.escape(char)}{_stops(inner)}"
        for char, inner in _by_char(rests).items()
        if "" not in inner
    ]
    return f"(?:{'|'.join(ways)})?" if ways else ""


def _by_char(rests: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rest in rests:
        found.setdefault(rest[0], []).append(rest[1:])
    return found
