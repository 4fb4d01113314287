"""Values drawn under a schema fit it; what could not be enforced is refused before."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from node.parsing.constraints.schema import (
    LONGEST_SCHEMA,
    UnsupportedConstraint,
    arguments_schema,
    prepared_schema,
)
from tests.node.parsing.drawing import Drawer, outputs, text_of

NULL = {"type": "null"}
OBJECT = {"type": "object"}
SHUT = {"type": "object", "additionalProperties": False}


def tagged(tag: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"type": "string", "const": tag}, "value": {"type": "integer"}},
        "required": ["kind"],
    }


ENFORCED: list[Any] = [
    True,
    {},
    {"const": {"b": 1, "a": [1, {"c": 'x"\\/\u2028'}]}},
    {"enum": [{"b": 1, "a": 2}, [1], "x", None, 1.5, True]},
    {"type": ["string", "null"], "maxLength": 2},
    {"type": "integer", "exclusiveMinimum": -3, "maximum": 12},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 40},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "multipleOf": 0.5, "minimum": -3, "maximum": 3},
    {"type": "string", "minLength": 2.0, "maxLength": 4, "pattern": '^[a-c/"]+$'},
    {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$", "maxLength": 6}]},
    {"type": "array", "prefixItems": [NULL, {"type": "boolean"}], "items": False},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {**OBJECT, "required": ["z", "y"], "additionalProperties": NULL, "minProperties": 2},
    {**OBJECT, "properties": {"a": {"type": "integer"}}, "additionalProperties": NULL},
    {**OBJECT, "properties": {"a": False, "format": {"type": "string", "format": "date"}}},
    {**SHUT, "patternProperties": {"^a": NULL, "^b": {"type": "boolean"}}},
    {**OBJECT, "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": NULL},
    {**OBJECT, "propertyNames": {"pattern": "^k[0-9]$"}, "additionalProperties": NULL},
    {"oneOf": [{"type": "string"}, {"type": "integer"}], "anyOf": [{"maximum": 3}]},
    {"oneOf": [{"const": 1}, {"const": 2}, {"enum": ["a"]}]},
    {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"cat": tagged("cat"), "dog": tagged("dog")},
    },
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                **SHUT,
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]}},
                "required": ["next"],
            }
        },
    },
    {**SHUT, "properties": {"a/b~c": NULL, "d": {"$ref": "#/properties/a~1b~0c"}}},
    {"type": "array", "uniqueItems": True, "items": NULL, "maxItems": 1},
    {"type": "integer", "format": "int32", "uniqueItems": False, "not": False, "then": False},
    {"type": "string", "format": "no-such-format", "maxLength": 3, "x-guidance": {"a": 1}},
    *(
        {"type": "string", "format": name}
        for name in ("date", "date-time", "time", "email", "ipv4", "ipv6", "uuid", "hostname")
    ),
]


@pytest.mark.parametrize("schema", ENFORCED, ids=lambda schema: json.dumps(schema)[:60])
def test_what_is_drawn_fits(schema: Any) -> None:
    drawn = outputs((), lambda lark: lark.json(schema, "format"), range(8))
    assert drawn
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for _, pieces in drawn:
        judge.validate(json.loads(text_of(pieces)))


LOOP = {"$ref": "#/$defs/a"}
REFUSED: list[tuple[Any, str]] = [
    (False, "No value"),
    ([], "must be an object"),
    ({"properties": {"a": 1}}, "must be an object"),
    ({"not": NULL}, "keyword not "),
    ({"properties": {"a": {"uniqueItems": True}}}, "keyword uniqueItems "),
    ({"if": NULL, "then": NULL}, "keyword if "),
    ({"dependentRequired": {"a": ["b"]}}, "keyword dependentRequired "),
    ({"contains": NULL}, "keyword contains "),
    ({"propertyNames": {"maxLength": 2}}, "keyword propertyNames "),
    ({"unevaluatedProperties": False}, "keyword unevaluatedProperties "),
    ({"items": {"format": "uri-reference"}}, "format uri-reference "),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "oneOf"),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2.0]}]}, "oneOf"),
    ({"oneOf": "x"}, "oneOf"),
    ({**OBJECT, "minProperties": 2, "required": ["a"]}, "minProperties"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "narrower"),
    ({"minimum": -0.5, "exclusiveMaximum": 0}, "narrower"),
    ({**LOOP, "$defs": {"a": LOOP}}, "No value"),
    ({"$ref": "#"}, "No value"),
    (
        {**LOOP, "$defs": {"a": {**OBJECT, "properties": {"b": LOOP}, "required": ["b"]}}},
        "No value",
    ),
    ({**LOOP, "$defs": {"a": {"type": "array", "items": LOOP, "minItems": 1}}}, "No value"),
    ({"minProperties": "2"}, "keyword minProperties "),
    ({"required": [{}]}, "keyword required "),
    ({"type": {}}, "keyword type "),
    ({"format": []}, "keyword format "),
    ({"enum": [1, 2**53 + 1]}, "keyword enum "),
    ({"const": {"a": [-(2**60)]}}, "keyword const "),
    ({"const": 1.5e300}, "keyword const "),
    ({"const": 10**400}, "keyword const "),
    ({"type": "integer", "minimum": 2**53 + 1}, "keyword minimum "),
    ({"exclusiveMaximum": -1e300}, "keyword exclusiveMaximum "),
    ({"multipleOf": 3 * 10**9}, "keyword multipleOf "),
    ({"multipleOf": 999983}, "keyword multipleOf "),
    ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "anchor"),
    ({"pattern": r"^[a--b]$"}, "pattern "),
    ({"patternProperties": {r"\bx": NULL}}, "pattern "),
    ({"const": float("inf")}, "JSON cannot express"),
    ({"enum": ["x" * LONGEST_SCHEMA]}, "longer than"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_what_cannot_be_enforced_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(UnsupportedConstraint, match=reason) as refused:
        Drawer().lark().json(schema, "text.format.schema")
    assert refused.value.param == "text.format.schema"


def test_a_schema_is_not_deeper_than_the_library_reads() -> None:
    def deep(count: int) -> Any:
        schema: Any = {}
        for _ in range(count):
            schema = {"properties": {"a": schema}}
        return schema

    drawer = Drawer()
    lark = drawer.lark()
    assert not drawer.error(lark.grammar(lark.json(deep(56), "p")))
    with pytest.raises(UnsupportedConstraint, match="deep"):
        lark.json(deep(57), "p")


def test_long_chains_of_references_are_followed() -> None:
    defs: dict[str, Any] = {
        f"d{at}": {**OBJECT, "properties": {"a": {"$ref": f"#/$defs/d{at + 1}"}}, "required": ["a"]}
        for at in range(3000)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**defs, "d3000": NULL}}
    assert prepared_schema(schema, "p")["$defs"]["d3000"] == NULL


def test_what_describes_is_left_out_but_not_properties_of_that_name() -> None:
    names = {"title": NULL, "description": NULL, "default": NULL, "not": NULL}
    schema = {"title": "T", "default": 1, "properties": names, "enum": [{"title": 1}]}
    prepared = prepared_schema(schema, "p")
    assert list(prepared["properties"]) == list(names)
    assert prepared["enum"] == [{"title": 1}]
    assert "title" not in prepared
    assert "default" not in prepared
    assert "title" in schema


def test_keys_keep_their_order() -> None:
    names = {name: NULL for name in "zaqm"}
    schema = {**SHUT, "properties": names, "required": sorted(names)}
    ((_, pieces),) = outputs((), lambda lark: lark.json(schema, "p"), range(1))
    assert list(json.loads(text_of(pieces))) == list(names)


def test_white_space_is_limited() -> None:
    drawer = Drawer()
    lark = drawer.lark()
    grammar = lark.grammar(lark.json({"type": "array", "items": NULL}, "p"))
    assert drawer.takes(grammar, drawer.cut("[\n  null,\n  null\n]"))
    assert not drawer.takes(grammar, drawer.cut("[\n\nnull]"))
    assert not drawer.takes(grammar, drawer.cut(f"[{' ' * 33}null]"))


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        ({}, True),
        ({"properties": {"a": NULL}, "required": ["a"]}, True),
        ({"properties": {"a": NULL}, "required": ["b"]}, False),
        ({"properties": {"a": NULL}, "additionalProperties": True}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, False),
        ({"properties": {"a": NULL}, "anyOf": [{}]}, False),
    ],
)
def test_arguments_are_an_object_of_what_is_declared(
    parameters: dict[str, Any], closed: bool
) -> None:
    schema = arguments_schema(parameters)
    assert schema["type"] == "object"
    assert (schema.get("additionalProperties") is False) == closed


def takes(schema: Any, text: str) -> bool:
    drawer = Drawer()
    lark = drawer.lark()
    grammar = lark.grammar(lark.json(schema, "p"))
    assert not drawer.error(grammar), drawer.error(grammar)
    return drawer.takes(grammar, drawer.cut(text))


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**18, 1e22, 2.5e-7, 123456789.25, 0.1])
def test_a_number_that_is_listed_is_written_as_itself(number: float) -> None:
    drawn = outputs((), lambda lark: lark.json({"enum": [number]}, "p"), range(2))
    assert [json.loads(text_of(pieces)) for _, pieces in drawn] == [number] * 2


def test_bounds_far_out_are_drawn_nearer() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert takes(schema, str(2**53))
    assert takes(schema, str(-(2**53)))
    assert not takes(schema, str(2**53 + 1))
    assert takes({"type": "number", "minimum": -1e308, "exclusiveMaximum": 1e308}, "-0.5")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["null", "integer"], "minimum": 1},
        {"type": "integer", "exclusiveMaximum": 10**19},
    ],
)
def test_the_length_of_an_integer_is_limited(schema: Any) -> None:
    assert takes(schema, "1")
    assert takes(schema, "1234567890123456")
    assert not takes(schema, "1" * 20)


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("^[a&&b]$", ["a", "b", "&"], ["c"]),
        ("^[[~]$", ["[", "~"], ["a"]),
        ('^[^"]$', ["a", "\\", "\n"], ['"']),
        (r"^[^\\]$", ["a", '"', "\t"], ["\\"]),
        (r'^[^\\"/]+$', ["ab"], ['a"', "a/", "a\\"]),
        (r"^[\x00-\x1f]$", ["\n", "\t"], ['"', "\\", "a"]),
        (r"^\S$", ["a", "\\"], [" ", "\x1c", "\x85", "\ufeff"]),
        (r"^[\S]$", ["a"], [" ", "\x1c", "\x85", "\ufeff"]),
        (r"^[^\s]$", ["a"], [" ", "\x1c", "\x85", "\xa0"]),
        (r"^[^\S]$", [" ", "\t"], ["a", "\x1c", "\x85"]),
        (r"^[^\d\w]$", ["-"], ["3", "\u0663", "\xe9", "\xb2"]),
        (r"^[^\D]$", ["3"], ["\u0663", "a"]),
        (r"^\W$", ["-"], ["\xe9", "\xb2"]),
        (r"^[\w-.]$", ["-", ".", "a"], ["`", "^"]),
        (r"^[a-\d]$", ["-", "5", "a"], ["b"]),
        (r"^(?<n>a)\<$", ["a<"], ["a"]),
        ("^a|b$", ["ax", "xb"], ["xa"]),
    ],
)
def test_a_pattern_means_what_all_readers_take_it_for(
    pattern: str, fits: list[str], others: list[str]
) -> None:
    schema = {"type": "string", "pattern": pattern}
    for text in fits:
        assert takes(schema, json.dumps(text, ensure_ascii=False)), text
    for text in others:
        assert not takes(schema, json.dumps(text, ensure_ascii=False)), text


def test_no_undeclared_key_is_a_declared_one_in_disguise() -> None:
    schema: Any = {**OBJECT, "properties": {"a": NULL}}
    assert takes(schema, '{"a": null, "b\\n\\"": "\u00e9"}')
    assert not takes(schema, '{"\\u0061": 1}')
    assert not takes({"type": "array", "items": schema}, '[{"\\u0061": 1}]')
    assert not takes({**OBJECT, "patternProperties": {"^a": NULL}}, '{"\\u0061": 1}')
    assert takes({"const": "\x1b"}, '"\\u001b"')


def test_dates_are_those_of_the_calendar() -> None:
    for form, rest in (("date", ""), ("date-time", "T00:00:00Z")):
        schema = {"type": "string", "format": form}
        for day in ("2024-02-29", "2000-02-29", "0400-02-29", "2023-02-28", "2026-12-31"):
            assert takes(schema, f'"{day}{rest}"'), day
        for day in ("2023-02-29", "1900-02-29", "2024-02-30", "2026-11-31"):
            assert not takes(schema, f'"{day}{rest}"'), day
    schema = {"type": "string", "format": "date", "pattern": "^20"}
    assert takes(schema, '"2024-02-29"')
    assert not takes(schema, '"1924-02-29"')
