"""Fits arguments to a tool's JSON schema: text becomes a number if the schema allows no text.

A JSON string stays a string wherever the schema allows strings. Bare text has no quotes that show
its type: it is a string if the schema allows only strings, and if it allows other types too, a
value of one of those if it spells one. Whatever does not fit stays as it is.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from node.parsing.json_text import read_json

_ALL = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_SPELLINGS = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
"""Names that clients write for types of JSON Schema."""
MOST_DEPTH = 16
"""Nesting depth up to which values are fitted."""

Schema = Mapping[str, Any]


def types_of(schema: object, root: Schema | None = None, depth: int = 0) -> frozenset[str]:
    """Returns the JSON types that a schema allows; empty if it names none. `root` is the schema
    that its references point into."""
    if not isinstance(schema, Mapping) or depth > MOST_DEPTH:
        return frozenset()
    root = schema if root is None else root
    if (target := _referred(schema, root)) is not None:
        return types_of(target, root, depth + 1)
    given = schema.get("type")
    if given is not None:
        names = given if isinstance(given, list) else [given]
        lower = [each.lower() for each in names if isinstance(each, str)]
        return frozenset(_SPELLINGS.get(each, each) for each in lower) & _ALL
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            found = [types_of(each, root, depth + 1) for each in branches]
            return frozenset().union(*found) if all(found) else frozenset()
    if isinstance(parts := schema.get("allOf"), list):
        known = [types for each in parts if (types := types_of(each, root, depth + 1))]
        return frozenset.intersection(*known) if known else frozenset()
    return _types_of_values(schema)


def _types_of_values(schema: Schema) -> frozenset[str]:
    """Returns the types of a schema that lists values in place of a type."""
    if isinstance(values := schema.get("enum"), list):
        return frozenset(_type(value) for value in values)
    if "const" in schema:
        return frozenset({_type(schema["const"])})
    return frozenset({"object"}) if "properties" in schema else frozenset()


def declares(parameters: Schema, name: str) -> bool:
    """True if a tool's schema declares the argument."""
    target = _referred(parameters, parameters)
    properties = (parameters if target is None else target).get("properties")
    return isinstance(properties, Mapping) and name in properties


def property_schema(parameters: Schema, name: str) -> object:
    """Returns the schema of one argument; None if the tool's schema has none for it."""
    target = _referred(parameters, parameters)
    properties = (parameters if target is None else target).get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    more = parameters.get("additionalProperties")
    return more if isinstance(more, Mapping) else None


def branch_of(schema: object, kind: str, root: Schema, depth: int = 0) -> Schema:
    """Returns the part of a schema that describes values of one JSON type; empty if there is
    none."""
    if not isinstance(schema, Mapping) or depth > MOST_DEPTH:
        return {}
    if (target := _referred(schema, root)) is not None:
        return branch_of(target, kind, root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(key), list):
            for each in parts:
                if kind in types_of(each, root, depth + 1):
                    return branch_of(each, kind, root, depth + 1)
    return schema


def typed(text: str, schema: object, root: Schema | None = None) -> Any:
    """Returns the value of an argument that a model wrote as bare text."""
    types = types_of(schema, root)
    if "string" in types:
        return _unless_string(text, types, schema)
    found = _read(text.strip())
    if found is _NONE:
        return text
    if _fits(found, types) or (not types and not _is_set(found, text)):
        return found
    if types == {"integer"} and isinstance(found, float) and found.is_integer():
        return int(found)
    return text


def _unless_string(text: str, types: frozenset[str], schema: object) -> Any:
    """Returns the value if a string is one of the allowed types."""
    if "null" in types and text.strip() == "None":
        return None
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if types == {"string"} or (isinstance(values, list) and text in values):
        return text
    try:
        found = read_json(text.strip())
    except ValueError:
        return text
    return found if _fits(found, types - {"string"}) else text


def fit(value: Any, schema: object, root: Schema | None = None, depth: int = 0) -> Any:
    """Returns the value with strings replaced by the values they spell wherever the schema allows
    no string, at any depth."""
    if depth > MOST_DEPTH or not isinstance(schema, Mapping):
        return value
    root = schema if root is None else root
    if isinstance(value, str):
        types = types_of(schema, root)
        if not types or "string" in types:
            return value
        found = typed(value, schema, root)
        return found if isinstance(found, str) else fit(found, schema, root, depth)
    if isinstance(value, dict):
        inner = branch_of(schema, "object", root)
        return {
            key: fit(each, property_schema(inner, key), root, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list):
        items = branch_of(schema, "array", root).get("items")
        return [fit(each, items, root, depth + 1) for each in value]
    return value


def _referred(schema: Schema, root: Schema) -> Schema | None:
    """Returns the schema that `$ref` points to, within the same root."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


_NONE = object()
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None}


def _read(text: str) -> Any:
    """Returns the value that a text spells in JSON or as a Python literal; `_NONE` if it spells
    neither."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    readers: tuple[Callable[[str], Any], ...] = (read_json, _read_literal)
    for reader in readers:
        try:
            return reader(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return _NONE


_PYTHON_ESCAPE = re.compile(
    r"\\(\n|[\\'\"abfnrtv0-7]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})?"
)


def _read_literal(text: str) -> Any:
    if not text.startswith(("{", "[", "(", "'")):
        raise ValueError(text)
    # Like in JSON, a backslash that begins no escape is a character.
    text = _PYTHON_ESCAPE.sub(lambda escape: escape[0] if escape[1] else "\\\\", text)
    value = ast.literal_eval(_SetsAsLists().visit(ast.parse(text, mode="eval")))
    # JSON has no bytes, no tuples as keys and no infinity.
    return _plain(value)


class _SetsAsLists(ast.NodeTransformer):
    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.List(node.elts, ast.Load()), node)


def _is_set(found: object, text: str) -> bool:
    """True if the text spells a Python set, which is read as a list if the schema asks for one."""
    return isinstance(found, list) and text.lstrip().startswith("{")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(type(value).__name__)


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    return "array" if isinstance(value, list) else "object"


def _fits(value: object, types: frozenset[str]) -> bool:
    found = _type(value)
    return found in types or (found == "integer" and "number" in types)
