"""Schemas of values that nothing quotes: what may be written for them."""

import re
from typing import Any

import pytest

from node.ipc.generate import ToolSchema
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.guarded_schema import guarded
from node.parsing.constraints.lark import Lark, Text
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.text_patterns import patterns_of
from node.parsing.constraints.values import SchemaPlace, flat_schemas
from tests.node.parsing.drawing import Drawer
from tests.node.parsing.spelled_calls import TEXT, check_drawn, spelled, takes

PLACE = SchemaPlace({}, "tools.f")


def glm(text: str, schema: Any, **parameters: Any) -> bool:
    """Returns True if the text may be the value of an argument with the schema."""
    tools = {"f": {"properties": {"a": schema}, **parameters}}
    call = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    return takes("glm", tools, call)


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        (TEXT, ["", " x\n", "5", "null", '"q"', "<arg_value>"], ["a</arg_value>b"]),
        ({"type": "integer"}, ["5", "-12"], ["5.5", "x", "", " 5", "1e2"]),
        ({"type": "number"}, ["5", "-0.25", "1e5"], ["1e999", "NaN", "x"]),
        ({"type": "integer", "minimum": 3}, ["3"], ["2", "x"]),
        ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2"]),
        ({"type": ["boolean", "null"]}, ["true", "null"], ["True", "x"]),
        ({"type": ["string", "null"]}, ["null", "None", "x", ""], []),
        ({"type": ["string", "null"], "minLength": 2}, ["null", "xy"], ["None", " null", "x"]),
        ({"enum": ["a", '"q"', "</arg_value>", 7, None]}, ["a", "7", "null"], ['"q"', "b"]),
        ({"type": "number", "enum": [1, 2.5]}, ["1", "2.5"], ["2", "x"]),
        ({"type": ["string", "null"], "enum": ["a"]}, ["a"], ["null"]),
        ({"enum": ["5", 5]}, ["5"], ["6"]),
        ({"anyOf": [{"enum": ["5", "x"]}, {"type": "integer"}]}, ["5", "77", "x"], ["y"]),
        ({"anyOf": [{"enum": ["all"]}, {"type": "integer", "minimum": 3}]}, ["all", "3"], ["2"]),
        ({"type": ["array", "string"]}, ["x", '["a", 1]', "5"], [" [", "[x"]),
        ({"type": "string", "pattern": "^a+$"}, ["aa"], ["", "b"]),
        ({"type": "string", "pattern": "a"}, ["xay", "a"], ["b"]),
        ({"type": "string", "maxLength": 2}, ["éé", ""], ["abc"]),
        ({"type": "string", "const": "x"}, ["x"], ["y"]),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, ["x"], ["xy"]),
        ({"oneOf": [{"const": "x"}, {"const": "y"}]}, ["x", "y"], ["z"]),
        ({}, ["x", "5", '{"a": 1}'], ["a</arg_value>b"]),
        ({"minimum": 5}, ["5", '"x"', "[]"], ["4", "x"]),
    ],
)
def test_what_a_value_may_be(schema: Any, texts: list[str], others: list[str]) -> None:
    for text in texts:
        assert glm(text, schema), text
    for text in others:
        assert not glm(text, schema), text


def test_references_are_followed() -> None:
    defs = {"K": {"enum": ["x", "y"]}, "L": {"type": "array", "items": {"$ref": "#/$defs/K"}}}
    assert glm("x", {"$ref": "#/$defs/K"}, **{"$defs": defs})
    assert not glm("z", {"$ref": "#/$defs/K"}, **{"$defs": defs})
    assert glm('["x"]', {"$ref": "#/$defs/L"}, **{"$defs": defs})
    assert not glm('["z"]', {"$ref": "#/$defs/L"}, **{"$defs": defs})


def test_the_parameters_may_be_a_reference() -> None:
    parameters = {
        "$ref": "#/$defs/P",
        "$defs": {"P": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
    }
    (argument,) = arguments_of(ToolSchema("f", parameters))
    assert (argument.name, argument.schema, argument.is_required) == ("a", TEXT, True)


def test_what_is_required_need_not_be_declared() -> None:
    more = {"required": ["b"], "properties": {"a": TEXT}}
    open_, typed = (
        arguments_of(ToolSchema("f", {**more, **each}))
        for each in ({}, {"additionalProperties": {"type": "integer"}})
    )
    assert [(each.name, each.schema) for each in open_] == [("a", TEXT), ("b", True)]
    assert [(each.name, each.schema) for each in typed] == [("a", TEXT), ("b", {"type": "integer"})]
    assert check_drawn("glm", {"f": {**more, "additionalProperties": {"type": "integer"}}}) > 0


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"anyOf": [{}]}, "anyOf at their top"),
        ({"type": "array"}, "not an object"),
        ({"properties": []}, "properties"),
        ({"$ref": "#/$defs/x"}, "reference"),
        ({"$ref": "other.json"}, "reference"),
        ({"enum": [{}]}, "enum"),
        ({"required": ["a"], "additionalProperties": False}, "required and not allowed"),
        ({"properties": {"a": {}}, "patternProperties": {"a": {}}}, "patternProperties"),
        ({"properties": {"a": {}}, "minProperties": 1}, "number of properties"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "number of properties"),
        ({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ],
)
def test_parameters_that_are_no_plain_object_are_refused(
    parameters: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedConstraint, match=why) as refused:
        arguments_of(ToolSchema("f", parameters, param="tools[0].function.parameters"))
    assert refused.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"type": "string", "pattern": r"(?=a)b"}, "pattern"),
        ({"type": "string", "pattern": r"\bb"}, "pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
        ({"type": "string", "pattern": "^a|b$"}, "pattern"),
        ({"type": "string", "pattern": "a$b"}, "pattern"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "string", "pattern": "[a--b]"}, "pattern"),
        ({"type": "string", "pattern": "a{3000}"}, "pattern"),
        ({"type": "string", "pattern": 5}, "pattern"),
        ({"type": "string", "pattern": "[a"}, "pattern"),
        ({"enum": ["a"], "pattern": "a"}, "pattern"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"enum": ["</arg_value>"]}, "cannot write"),
        ({"type": "string", "enum": "a"}, "cannot write"),
        ({"oneOf": [TEXT, {"type": "string", "maxLength": 2}]}, "oneOf"),
        ({"oneOf": [{"enum": ["a", 1]}, {"const": "a"}]}, "oneOf"),
        ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern"),
        ({"anyOf": [TEXT, 5]}, "an object"),
        (5, "an object"),
        ({"type": "array", "items": {"$ref": "#/properties/b"}}, "reference"),
        (
            {
                "allOf": [{"anyOf": [{"type": "string", "maxLength": n} for n in range(9)]}] * 2
                + [{"anyOf": [{"type": "string", "minLength": n} for n in range(9)]}]
            },
            "choices",
        ),
    ],
)
def test_a_schema_that_is_not_enforced_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(UnsupportedConstraint, match=why) as refused:
        spelled(Lark({}), "glm", {"f": {"properties": {"a": schema}}})
    assert refused.value.param == "tools.f"


def test_a_schema_that_refers_to_itself_is_refused() -> None:
    root = {"$ref": "#"}
    with pytest.raises(UnsupportedConstraint, match="refers to itself"):
        flat_schemas(root, SchemaPlace(root, "x"))
    with pytest.raises(UnsupportedConstraint, match="not an object"):
        flat_schemas(5, PLACE)


@pytest.mark.parametrize(
    ("schema", "flat"),
    [
        (True, [{}]),
        (None, [{}]),
        (False, []),
        ({"title": "x", "type": "string"}, [{"type": "string"}]),
        ({"const": 1, "enum": [1, 2]}, [{"enum": [1]}]),
        ({"const": 3, "enum": [1, 2]}, []),
        ({"const": True, "enum": [1]}, []),
        ({"type": "integer", "enum": [1, 2.0, 2.5, "a"]}, [{"type": "integer", "enum": [1, 2.0]}]),
        (
            {
                "allOf": [
                    {"type": "number", "minimum": 1},
                    {"type": ["integer", "null"], "minimum": 2},
                ]
            },
            [{"type": ["integer"], "minimum": 2}],
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, []),
        ({"allOf": [{"enum": [1, "a"]}, {"enum": ["a", 2]}]}, [{"enum": ["a"]}]),
        ({"allOf": [{"enum": [1, "a"]}, {"type": "string"}]}, [{"enum": ["a"], "type": "string"}]),
        (
            {"allOf": [{"required": ["a"]}, {"required": ["b", "a"]}]},
            [{"required": ["a", "b"]}],
        ),
        (
            {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"a": {}, "b": {}}}]},
            [{"properties": {"a": {"allOf": [TEXT, {}]}, "b": {}}}],
        ),
        ({"allOf": [{"maxLength": 4}, {"maxLength": 2}]}, [{"maxLength": 2}]),
        ({"allOf": "x"}, [{}]),
        (
            {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 4}]},
            [{"type": "string", "maxLength": 1}, {"type": "string", "minLength": 4}],
        ),
    ],
)
def test_a_schema_is_flattened(schema: Any, flat: list[Any]) -> None:
    assert flat_schemas(schema, PLACE) == flat


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        (r"^\d+\.\w$", ["12.a"], ["x.a", "1٣.a"]),
        (r"[\d_]x", ["_x", "a1xb"], ["x"]),
        (r"^[^\]^&\[~]+$", ["ab"], ["a&", "a]", "a["]),
        (r"^(?:a|b){2,3}$", ["ab", "aba"], ["a", "abab"]),
        (r"^a{b}\{\}$", ["a{b}{}"], ["ab"]),
        (r"^.\/x$", ["a/x"], ["\n/x", "\u2028/x"]),
        (r"^\u00e9\x41$", ["éA"], ["eA"]),
        (r"\\$", ["a\\"], ["a"]),
        (r"^a\$$", ["a$"], ["a"]),
        (r"a|b", ["xa", "b"], ["c"]),
        (r"^\S[\S]$", ["ab"], ["a\x1c", "\x85b", "a\xa0"]),
        (r"^[ \t\v-]$", [" ", "-", "\x0b"], ["x"]),
    ],
)
def test_a_pattern_means_the_same(pattern: str, fits: list[str], others: list[str]) -> None:
    (converted,) = patterns_of({"pattern": pattern}, PLACE)
    drawer = Drawer()
    lark = drawer.lark()
    grammar = lark.grammar(lark.text_of([Text((converted,))]))
    assert not drawer.error(grammar), drawer.error(grammar)
    for text in fits:
        assert re.search(pattern, text)
        assert drawer.takes(grammar, drawer.cut(text)), text
    for text in others:
        assert not drawer.takes(grammar, drawer.cut(text)), text


@pytest.mark.parametrize(
    ("form", "fits", "others"),
    [
        ("date", "2026-11-30", "2026-02-30"),
        ("time", "23:59:00Z", "24:00:00Z"),
        ("date-time", "2026-01-31T00:00:00.5+01:00", "2026-01-31"),
        ("duration", "P3D", "P"),
        ("email", "a.b@c.de", "a@"),
        ("hostname", "a-b.example", "-a"),
        ("ipv4", "192.168.0.255", "256.0.0.1"),
        ("ipv6", "2001:db8:0:0:0:0:0:1", "2001"),
        ("uri", "https://a.b:80/c%20d?e=f#g", "a b"),
        ("uuid", "00000000-0000-4000-8000-00000000000a", "0"),
        ("json-pointer", "/a~1b/0", "a"),
    ],
)
def test_a_format_is_enforced(form: str, fits: str, others: str) -> None:
    schema = {"type": "string", "format": form}
    assert glm(fits, schema)
    assert not glm(others, schema)


WORDS = ("</ab", "</b", "<cd")


def json_takes(schema: Any, text: str) -> bool:
    drawer = Drawer()
    lark = drawer.lark()
    grammar = lark.grammar(lark.json(guarded(schema, WORDS), "x"))
    assert not drawer.error(grammar), drawer.error(grammar)
    return drawer.takes(grammar, drawer.cut(text))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"minimum": 5},
        {"type": "array"},
        {"type": "array", "items": TEXT},
        {"type": "array", "items": {"type": "string", "pattern": "^.*$"}},
        {"type": "array", "items": {"anyOf": [TEXT, {"type": "null"}]}},
        {"type": "array", "items": {"$ref": "#/$defs/s"}, "$defs": {"s": TEXT}},
    ],
)
def test_no_string_in_json_contains_what_would_end_it(schema: Any) -> None:
    for text in ("", "a", "<", "</", "</a</a", "<<c<", "</cd", "<b", "x</a<c</", "</<b"):
        assert json_takes(schema, f'["{text}"]'), text
    for text in ("</ab", "x</by", "<</b", "</a</ab", "<c<cd", "</</b"):
        assert not json_takes(schema, f'["{text}"]'), text


def test_names_in_json_are_guarded_too() -> None:
    for schema in ({"type": "object"}, {"type": "object", "additionalProperties": True}):
        assert json_takes(schema, '{"<x": {"b": [1, null]}}')
        assert not json_takes(schema, '{"</b": 1}')
        assert not json_takes(schema, '{"a": {"</b": 1}}')
    named = {"type": "object", "properties": {"a": {"type": "number"}}}
    assert json_takes(named, '{"a": 1.5}')
    assert not json_takes(named, '{"b": 1}')
    assert not json_takes(named, '{"a": 1e999}')
    assert not json_takes({"type": "object", "additionalProperties": False}, '{"b": 1}')
    more = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}
    assert json_takes(more, '{"a": "x"}')
    assert not json_takes(more, '{"b": null}')
    assert json_takes({**more, "required": ["b"]}, '{"a": "x", "b": null}')
    some = {"type": "object", "patternProperties": {"^a$": {"type": "null"}}}
    assert json_takes(some, '{"a": null}')
    assert not json_takes(some, '{"b": null}')
    assert json_takes({"enum": [["x"]]}, '["x"]')
    assert json_takes({"type": "number", "minimum": 1}, "1.5")
