"""A body has one constraint at most, reported with the path of its field."""

import json
from typing import Any

import pytest

from node.dialects.fields.constraints import (
    MAX_SCHEMA_LENGTH,
    ConstraintFields,
    json_schema,
    read_constraint,
    response_format,
)
from node.errors import BadRequest, Unsupported
from node.ipc.generate import Constraint, ConstraintKind
from node.parsing.constraints.schema import LONGEST_SCHEMA

SCHEMA = {"type": "object", "properties": {"é": {"const": None}}}
BAD_CHOICES: tuple[object, ...] = ([], "a", {}, [""], [1], ["a", 1])
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False)


def constraint(**fields: Any) -> Constraint | None:
    return read_constraint(ConstraintFields.model_validate(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_fallback": True}},
    ],
)
def test_there_is_no_constraint_by_default(fields: dict[str, Any]) -> None:
    assert constraint(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": False, "schema": SCHEMA},
                }
            },
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_object",
                    "schema": {**SCHEMA, "type": ["object", "null"]},
                }
            },
            "response_format.schema",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, "structured_outputs.json"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_json": SCHEMA_TEXT}, "guided_json"),
    ],
)
def test_a_schema_may_stand_in_many_places(fields: dict[str, Any], param: str) -> None:
    assert constraint(**fields) == Constraint(ConstraintKind.JSON_SCHEMA, param, SCHEMA_TEXT)


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("regex", "[a-z]+", ConstraintKind.REGEX, "[a-z]+"),
        ("choice", ["ja", "nö"], ConstraintKind.CHOICE, '["ja", "nö"]'),
        ("grammar", 'start: "a"', ConstraintKind.LARK, 'start: "a"'),
    ],
)
def test_an_answer_may_be_constrained_to_more_than_json(
    name: str, value: object, kind: ConstraintKind, text: str
) -> None:
    assert constraint(**{f"guided_{name}": value}) == Constraint(kind, f"guided_{name}", text)
    path = f"structured_outputs.{name}"
    assert constraint(structured_outputs={name: value}) == Constraint(kind, path, text)


def test_any_json_object_has_no_schema() -> None:
    for fields, param in (
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "response_format",
        ),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ):
        assert constraint(**fields) == Constraint(ConstraintKind.JSON_OBJECT, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}, "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_two_contradict_each_other(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match=r"not allowed together with .*\.$") as caught:
        constraint(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": []}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "array"}}},
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_json": '{"const": "\\ud800"}'}, "guided_json"),
        ({"structured_outputs": {"json": '{"\\udc00": {}}'}}, "structured_outputs.json"),
        ({"guided_json": '{"const": NaN}'}, "guided_json"),
        ({"guided_json": '{"const": 1e999}'}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": "5"}, "guided_json"),
        ({"guided_json": '{"maximum": Infinity}'}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_grammar": {}}, "guided_grammar"),
        *(({"guided_choice": bad}, "guided_choice") for bad in BAD_CHOICES),
        ({"guided_regex": "a" * (MAX_SCHEMA_LENGTH + 1)}, "guided_regex"),
        ({"guided_json": {"const": "a" * MAX_SCHEMA_LENGTH}}, "guided_json"),
    ],
)
def test_a_constraint_that_is_not_valid_is_refused_with_its_path(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        constraint(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "grammar", "grammar": "a"}}, "response_format.type"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_not_supported(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        constraint(**fields)
    assert caught.value.param == param


def test_other_dialects_name_their_own_fields() -> None:
    given = {"type": "json_schema", "name": "a", "schema": SCHEMA}
    found = response_format(given, "text.format")
    assert found == json_schema(SCHEMA, "text.format.schema")


def test_json_object_constrains_to_an_object_also_where_the_schema_has_no_type() -> None:
    found = constraint(response_format={"type": "json_object", "schema": {"required": ["a"]}})
    assert found is not None
    assert json.loads(found.text) == {"required": ["a"], "type": "object"}


def test_the_longest_schema_is_the_engines() -> None:
    text = "a" * (LONGEST_SCHEMA - 2)
    assert constraint(guided_regex=text + "aa") is not None
    with pytest.raises(BadRequest, match=f"more than {LONGEST_SCHEMA} characters"):
        constraint(guided_regex=text + "aaa")


def test_a_schema_in_a_text_is_not_decoded_where_it_is_too_long() -> None:
    for fields in (
        {"guided_json": "[" * LONGEST_SCHEMA + "["},
        {"structured_outputs": {"json": "{" * LONGEST_SCHEMA + "{"}},
    ):
        with pytest.raises(BadRequest, match=f"more than {LONGEST_SCHEMA} characters"):
            constraint(**fields)
