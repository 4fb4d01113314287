"""Prepares JSON schemas for the grammar library.

Annotations and keywords without effect are removed. A schema is rejected if the library would allow
values that do not fit it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from node.parsing.constraints.numbers import UnsupportedNumbers, is_number, narrow_numbers
from node.parsing.constraints.regex_syntax import search_pattern
from node.parsing.constraints.schema_refs import can_end, is_exclusive


class UnsupportedConstraint(Exception):
    """An output cannot be constrained this way. Has a sentence with the reason, and the body's
    field that asks for it."""

    def __init__(self, reason: str, param: str) -> None:
        super().__init__(reason)
        self.param = param


WHITE_SPACE = r"\n?[ \t]{0,32}"
"""White space between the tokens of JSON: enough for indentation, and no model can go on with
it."""
SOME_WHITE_SPACE = r"\n[ \t]{0,32}|[ \t]{1,32}"
"""Like `WHITE_SPACE`, but not empty."""
_PLAIN_ESCAPES = 'nrbtf\\"'
"""JSON escapes other than character codes. With codes, a key could hide that it is a declared
one."""
_CONTROL = re.compile(r"\\u00[01]")
"""JSON text of a character that can only be escaped as a code."""
LONGEST_SCHEMA = 256 * 1024
"""Most characters of a schema; a longer one takes seconds to compile."""
DEEPEST = 56
"""Deepest nesting of schemas; the library reads brackets 128 deep."""

_ANNOTATIONS = frozenset(
    (
        "$comment",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
        "x-guidance",
    )
)
_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
"""Formats that the library supports."""
_UNSUPPORTED_FORMATS = frozenset(
    (
        "idn-email",
        "idn-hostname",
        "iri",
        "iri-reference",
        "json-pointer",
        "regex",
        "relative-json-pointer",
        "uri-reference",
        "uri-template",
    )
)
"""Other formats that JSON Schema defines. Formats that are in neither set are annotations."""
_REAL_DATE = (
    "^(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01][0-9]|2[0-8])"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26]|0[48])00)-02-29)"
)
_UNSUPPORTED = (
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
)
_COUNTS = (
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
)
_OPEN = frozenset(
    ("$ref", "additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if")
)
"""Keywords that say which other properties may occur, here or elsewhere."""
_SCHEMA = frozenset(("additionalItems", "additionalProperties", "items"))
_SCHEMAS = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
_NAMED_SCHEMAS = frozenset(("$defs", "definitions", "patternProperties", "properties"))
"""Keywords whose value is a schema, a list of schemas, or an object of schemas."""

Schema = dict[str, Any]


def arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a tool's arguments: an object with only the declared properties, unless
    the parameters say which others may occur."""
    schema = {**parameters, "type": "object"}
    named = parameters.get("properties", {})
    required = parameters.get("required", [])
    if _OPEN & parameters.keys() or not isinstance(named, Mapping) or not _are_words(required):
        return schema
    if not set(required) <= named.keys():
        return schema
    return {**schema, "properties": dict(named), "additionalProperties": False}


def prepared_schema(schema: object, param: str) -> dict[str, Any]:
    """Returns the schema without annotations, such as formats that JSON Schema does not define, and
    with bounded white space. Raises `UnsupportedConstraint`."""
    prepared = _Walk(schema, param).prepared(schema, 0)
    if prepared is False:
        raise UnsupportedConstraint("No value fits the schema.", param)
    if not can_end(prepared, prepared):
        raise UnsupportedConstraint("No value that ends fits the schema.", param)
    options = {"whitespace_pattern": WHITE_SPACE}
    if not _CONTROL.search(json.dumps(prepared)):
        options["json_allowed_escapes"] = _PLAIN_ESCAPES
    return {**prepared, "x-guidance": options}


def schema_text(schema: object, param: str) -> str:
    """Returns the JSON text of `prepared_schema`. Raises `UnsupportedConstraint`."""
    try:
        prepared = prepared_schema(schema, param)
        text = json.dumps(prepared, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        raise UnsupportedConstraint(
            "The schema has a value that JSON cannot express.", param
        ) from None
    if len(text) > LONGEST_SCHEMA:
        raise UnsupportedConstraint(
            f"The schema is longer than {LONGEST_SCHEMA} characters.", param
        )
    return text


class _Walk:
    """Walks through one schema."""

    def __init__(self, root: object, param: str) -> None:
        self._root = root
        self._param = param

    def prepared(self, schema: object, depth: int) -> Any:
        """Returns the prepared form of a schema within the root; False if no value fits."""
        if schema is False:
            return False
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise self._refused("A JSON schema must be an object.")
        if depth > DEEPEST:
            raise self._refused(f"The schema is more than {DEEPEST} schemas deep.")
        prepared = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        for keyword, is_right in _SHAPES.items():
            if keyword in prepared and not is_right(prepared[keyword]):
                raise self._refused(f"The keyword {keyword} of a JSON schema has a wrong value.")
        for rule in (_drop_idle, _name_properties, _whole_counts):
            rule(prepared)
        self._check(prepared)
        self._one_of(prepared)
        return {key: self._within(key, value, depth + 1) for key, value in prepared.items()}

    def _within(self, key: str, value: Any, depth: int) -> Any:
        if key == "patternProperties" and isinstance(value, Mapping):
            value = {self._pattern(pattern): each for pattern, each in value.items()}
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            return {name: self.prepared(each, depth) for name, each in value.items()}
        if key in _SCHEMAS and isinstance(value, list):
            return [self.prepared(each, depth) for each in value]
        return self.prepared(value, depth) if key in _SCHEMA else value

    def _check(self, prepared: Schema) -> None:
        """Raises `UnsupportedConstraint` for rules that the library would not enforce. Removes
        those that it does not know and that are always satisfied."""
        self._check_keys(prepared)
        self._check_values(prepared)
        for keyword in _UNSUPPORTED:
            if keyword in prepared:
                raise self._refused(f"The keyword {keyword} of JSON Schema is not supported.")
        format_name = prepared.get("format")
        if format_name in _UNSUPPORTED_FORMATS:
            raise self._refused(f"The format {format_name} of JSON Schema is not supported.")
        if format_name not in _FORMATS:
            prepared.pop("format", None)
        # A key may occur twice, and then counts once.
        least = prepared.get("minProperties", 0)
        if least <= len(set(prepared.get("required", ()))):
            prepared.pop("minProperties", None)
        elif least > 1 and (
            prepared.get("additionalProperties") is not False or prepared.get("patternProperties")
        ):
            raise self._refused(
                "The keyword minProperties is supported only for declared properties."
            )

    def _check_keys(self, prepared: Schema) -> None:
        """Checks references; see `_check`."""
        if re.match("#[^/]", prepared.get("$ref", "")):
            raise self._refused("References to named anchors are not supported.")

    def _check_values(self, prepared: Schema) -> None:
        """Checks rules about numbers and strings; see `_check`."""
        try:
            narrow_numbers(prepared)
        except UnsupportedNumbers as error:
            raise self._refused(str(error)) from None
        if isinstance(prepared.get("pattern"), str):
            prepared["pattern"] = self._pattern(prepared["pattern"])
        if prepared.get("format") in ("date", "date-time"):
            # The library ignores leap years.
            prepared["allOf"] = [*prepared.get("allOf", ()), {"pattern": _REAL_DATE}]

    def _pattern(self, pattern: str) -> str:
        try:
            return search_pattern(pattern)
        except ValueError:
            raise self._refused(f"The pattern {pattern} is not supported.") from None

    def _one_of(self, prepared: Schema) -> None:
        """Replaces `oneOf` by `anyOf`, which is the same if no value fits two of the schemas."""
        options = prepared.pop("oneOf", None)
        if options is None:
            return
        if not isinstance(options, list) or not is_exclusive(options, self._root):
            reason = (
                "The keyword oneOf is supported only for schemas of which no two can fit a value."
            )
            raise self._refused(reason)
        if "anyOf" in prepared:
            prepared["allOf"] = [*prepared.get("allOf", ()), {"anyOf": options}]
        else:
            prepared["anyOf"] = options

    def _refused(self, reason: str) -> UnsupportedConstraint:
        return UnsupportedConstraint(reason, self._param)


def _drop_idle(prepared: Schema) -> None:
    """Removes keywords that allow every value."""
    for keyword, is_idle in _IDLE.items():
        if keyword in prepared and is_idle(prepared[keyword]):
            del prepared[keyword]
    if prepared.get("maxItems", 2) <= 1:
        prepared.pop("uniqueItems", None)
    if "then" not in prepared and "else" not in prepared:
        prepared.pop("if", None)
    if "if" not in prepared:
        prepared.pop("then", None)
        prepared.pop("else", None)
    if "contains" not in prepared:
        prepared.pop("minContains", None)
        prepared.pop("maxContains", None)


def _is_anything(schema: object) -> bool:
    return schema is True or schema == {}


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and is_number(value) and value >= 0


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "$ref": lambda value: isinstance(value, str),
    "format": lambda value: isinstance(value, str),
    "properties": lambda value: isinstance(value, Mapping),
    "required": _are_words,
    "type": lambda value: isinstance(value, str) or _are_words(value),
    **dict.fromkeys(_COUNTS, _is_count),
}
_IDLE: Mapping[str, Callable[[Any], bool]] = {
    "dependencies": lambda value: value == {},
    "dependentRequired": lambda value: value == {},
    "dependentSchemas": lambda value: value == {},
    "not": lambda value: value is False,
    "propertyNames": lambda value: _is_anything(value) or value == {"type": "string"},
    "unevaluatedItems": _is_anything,
    "unevaluatedProperties": _is_anything,
    "uniqueItems": lambda value: value is False,
}


def _name_properties(prepared: Schema) -> None:
    """Expresses a rule about the names of properties by other keywords, if possible."""
    names = prepared.get("propertyNames")
    if not isinstance(names, Mapping) or {"properties", "patternProperties"} & prepared.keys():
        return
    words = {key: value for key, value in names.items() if key not in (*_ANNOTATIONS, "type")}
    if names.get("type", "string") != "string" or len(words) != 1:
        return
    value = prepared.get("additionalProperties", True)
    if isinstance(words.get("enum"), list):
        prepared["properties"] = {each: value for each in words["enum"] if isinstance(each, str)}
    elif isinstance(words.get("pattern"), str):
        prepared["patternProperties"] = {words["pattern"]: value}
    else:
        return
    prepared["additionalProperties"] = False
    del prepared["propertyNames"]


def _whole_counts(prepared: Schema) -> None:
    """Writes 2.0 as 2."""
    for keyword in _COUNTS:
        count = prepared.get(keyword)
        if isinstance(count, float) and count.is_integer():
            prepared[keyword] = int(count)
