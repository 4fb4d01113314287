from typing import Any

import pytest

from node.parsing.coercion import branch_of, declares, fit, property_schema, typed, types_of

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
ALL = ("string", "integer", "null", "number", "boolean", "array", "object")
ROOT: dict[str, Any] = {
    "$defs": {"n": INTEGER, "loop": {"$ref": "#/$defs/loop"}, "a/b": STRING},
    "properties": {"n": {"$ref": "#/$defs/n"}},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (STRING, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        (
            {"anyOf": [STRING, {"oneOf": [INTEGER, {"type": "null"}]}]},
            {"string", "integer", "null"},
        ),
        ({"anyOf": [STRING, {}]}, set()),
        ({"allOf": [{"type": ["string", "integer"]}, INTEGER, {"minimum": 1}]}, {"integer"}),
        ({"enum": ["a", 1, None, 1.5, True, [], {}]}, set(ALL)),
        ({"const": "a"}, {"string"}),
        ({"properties": {}}, {"object"}),
        ({"$ref": "#/$defs/n"}, {"integer"}),
        ({"$ref": "#/$defs/a~1b"}, {"string"}),
        ({"$ref": "#/$defs/none"}, set()),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "elsewhere.json"}, set()),
        ({"type": "STRING"}, {"string"}),
        ({"type": "float"}, {"number"}),
        ({"type": "any"}, set()),
        ({}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_a_schema_determines_which_types_it_accepts(schema: object, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("42", "string", "42"),
        ("null", "string", "null"),
        (' "a" ', "string", ' "a" '),
        ("42", "integer", 42),
        (" 42\n", "integer", 42),
        ("42.0", "integer", 42),
        ("42.5", "integer", "42.5"),
        ("007", "integer", "007"),
        ("-1.5e3", "number", -1500.0),
        ("42", "number", 42),
        ("NaN", "number", "NaN"),
        ("true", "boolean", True),
        ("False", "boolean", False),
        ("1", "boolean", "1"),
        ("yes", "boolean", "yes"),
        ("[1, 2]", "array", [1, 2]),
        ("['a', True, (None,)]", "array", ["a", True, [None]]),
        ('{"a": 1}', "object", {"a": 1}),
        ("{'a': 1}", "object", {"a": 1}),
        ("{'a', 'b'}", "object", "{'a', 'b'}"),
        ("{'b', 'a', ('c',)}", "array", ["b", "a", ["c"]]),
        ("{'b': {2, 1}}", "object", {"b": [2, 1]}),
        ("{1: 2}", "object", "{1: 2}"),
        ('{"a": ', "object", '{"a": '),
        ("null", ["integer", "null"], None),
        ("None", ["string", "null"], None),
        ("null", ["string", "null"], None),
        ("42", ["string", "integer"], 42),
        ("42 m", ["string", "integer"], "42 m"),
        ('"42"', ["string", "integer"], '"42"'),
        ('{"a": 1}', ["string", "object"], {"a": 1}),
        ("{'a': 1}", ["string", "object"], "{'a': 1}"),
        ("[1]", ["string", "object"], "[1]"),
    ],
)
def test_bare_text_becomes_what_the_schema_accepts(text: str, types: Any, value: Any) -> None:
    found = typed(text, {"type": types})
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), ("a", "a"), ("true", True), ('"a"', "a"), ("", ""), ("[1]", [1]), ("(", "(")],
)
def test_without_a_schema_bare_text_is_what_it_spells(text: str, value: Any) -> None:
    assert typed(text, None) == value
    assert typed(text, {}) == value


def test_a_value_that_the_schema_names_as_text_is_text() -> None:
    assert typed("1", {"type": ["string", "integer"], "enum": ["1", 2]}) == "1"


def test_deep_text_is_no_error() -> None:
    text = "[" * 50_000
    assert typed(text, {"type": "array"}) == text
    text = "-" * 50_000 + "1"
    assert typed(text, {"type": "number"}) == text


def test_an_argument_has_the_schema_of_its_name_or_of_all_others() -> None:
    parameters = {"properties": {"a": STRING}, "additionalProperties": INTEGER}
    assert property_schema(parameters, "a") == STRING
    assert property_schema(parameters, "b") == INTEGER
    assert property_schema({"properties": {"a": STRING}}, "b") is None
    assert property_schema({"additionalProperties": True}, "b") is None
    assert declares(parameters, "a")
    assert not declares(parameters, "b")
    assert not declares({}, "a")
    whole = {"$ref": "#/$defs/p", "$defs": {"p": parameters}}
    assert declares(whole, "a")
    assert property_schema(whole, "a") == STRING


def test_a_branch_is_what_a_schema_sets_for_one_type() -> None:
    items = {"type": "array", "items": INTEGER}
    schema = {"anyOf": [STRING, {"allOf": [items]}, {"$ref": "#/$defs/n"}]}
    assert branch_of(schema, "array", ROOT) == items
    assert branch_of(schema, "integer", ROOT) == INTEGER
    assert branch_of(None, "array", ROOT) == {}
    assert branch_of({"$ref": "#/$defs/loop"}, "array", ROOT) == {}


def test_strings_within_arguments_become_what_the_schema_accepts() -> None:
    schema = {
        "properties": {
            "s": STRING,
            "n": INTEGER,
            "many": {"type": "array", "items": INTEGER},
            "maybe": {
                "anyOf": [{"type": "object", "properties": {"n": INTEGER}}, {"type": "null"}]
            },
            "by": {"$ref": "#/$defs/p"},
            "any": {},
        },
        "$defs": {"p": {"type": "object", "properties": {"n": INTEGER, "s": STRING}}},
    }
    value = {
        "s": "1",
        "n": "1",
        "many": ["1", 2, "x"],
        "maybe": {"n": "1", "other": "1"},
        "by": {"n": "1", "s": "1"},
        "any": "1",
    }
    assert fit(value, schema) == {
        "s": "1",
        "n": 1,
        "many": [1, 2, "x"],
        "maybe": {"n": 1, "other": "1"},
        "by": {"n": 1, "s": "1"},
        "any": "1",
    }


@pytest.mark.parametrize("schema", [None, True, {}, {"type": "object"}, {"properties": {"s": 1}}])
def test_without_a_schema_arguments_stay_as_they_are(schema: object) -> None:
    value = {"s": "1", "n": [1, "2", None]}
    assert fit(value, schema) == value


def test_a_string_of_json_becomes_the_object_that_the_schema_accepts() -> None:
    schema = {"properties": {"o": {"type": "object"}, "l": {"type": "array"}, "s": STRING}}
    value = {"o": '{"a": 1}', "l": "[1]", "s": '{"a": 1}'}
    assert fit(value, schema) == {"o": {"a": 1}, "l": [1], "s": '{"a": 1}'}
