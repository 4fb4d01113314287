"""Tests that no format lets the model write an argument of a tool that no value fits."""

from typing import Any

import pytest

from node.ipc.generate import ToolSchema
from node.parsing.constraints.arguments import arguments_of, object_of_arguments
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.registry import layout_for, tool_call_names
from tests.node.parsing.drawing import Drawer
from tests.node.parsing.spelled_calls import check_drawn, spelled

TEXT = {"type": "string"}
NOTHING: dict[str, Any] = {
    "texts of integers": {"type": "integer", "enum": ["1", "dontcare"]},
    "texts of lists": {"type": "array", "enum": ["a", "b"]},
    "another constant": {"type": "string", "const": 3},
    "two types": {"allOf": [TEXT, {"type": "integer"}]},
    "no choice": {"anyOf": []},
    "choices of nothing": {
        "anyOf": [{"type": "integer", "enum": ["a"]}, {"type": "null", "enum": [1]}]
    },
    "a range upside down": {"type": "integer", "minimum": 5, "maximum": 3},
    "a range of nothing": {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
    "no whole number": {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
    "an old range": {"type": "number", "minimum": 5, "maximum": 5, "exclusiveMaximum": True},
    "lengths upside down": {"type": "string", "minLength": 4, "maxLength": 2},
    "some of no items": {"type": "array", "items": False, "minItems": 1},
    "items of nothing": {
        "type": "array",
        "items": {"type": "boolean", "enum": ["x"]},
        "minItems": 1,
    },
    "items upside down": {"type": "array", "minItems": 3, "maxItems": 2},
    "a required nothing": {
        "properties": {"x": {"type": "integer", "enum": ["a"]}},
        "required": ["x"],
    },
    "a reference": {"$ref": "#/$defs/none"},
}
LESS: dict[str, Any] = {
    "a member": {
        "type": "object",
        "properties": {"y": {"type": "integer", "enum": ["a"]}, "z": TEXT},
    },
    "items": {"type": "array", "items": {"type": "integer", "enum": ["a"]}},
    "a choice": {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, TEXT]},
}
"""Schemas of which a part is nothing."""
FORMATS = [name for name in tool_call_names() if name not in ("none", "auto")]


def parameters(schema: object, *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": schema, "b": TEXT},
        "required": list(required),
        "$defs": {"none": {"type": "integer", "enum": ["q"]}},
    }


def error_of(form: str, schema: dict[str, Any]) -> str:
    drawer = Drawer()
    return drawer.error(spelled(drawer.lark(), form, {"f": schema}))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schema", NOTHING.values(), ids=NOTHING)
def test_an_argument_that_no_value_fits_is_left_out_or_refused(form: str, schema: object) -> None:
    assert error_of(form, parameters(schema, "b")) == ""
    with pytest.raises(UnsupportedConstraint, match=r"required and which no value fits") as refused:
        error_of(form, parameters(schema, "a"))
    assert refused.value.param == "tools.f"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schema", LESS.values(), ids=LESS)
def test_a_part_that_no_value_fits_is_left_out(form: str, schema: object) -> None:
    assert error_of(form, parameters(schema, "a", "b")) == ""


@pytest.mark.parametrize(
    "form", ["hermes", "gemma4", "lfm2", "functiongemma", "qwen3_coder", "nemotron"]
)
def test_what_is_drawn_fits(form: str) -> None:
    markers = layout_for("none", form).openers
    for schema in (*LESS.values(), NOTHING["texts of integers"]):
        assert check_drawn(form, {"f": parameters(schema, "b")}, markers[:1])


def test_what_something_fits_stays_as_it_is() -> None:
    schema = {
        **parameters({"$ref": "#/$defs/node"}, "a"),
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    "n": {"type": "integer", "minimum": 3, "maximum": 3},
                    "e": {"enum": ["x", 1, None]},
                    "l": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2},
                },
                "required": ["n", "next"],
                "additionalProperties": {"type": "boolean"},
            }
        },
    }
    tool = ToolSchema("f", schema, param="tools")
    assert object_of_arguments(tool) == {**schema, "additionalProperties": False}
    assert [each.name for each in arguments_of(tool)] == ["a", "b"]


def test_a_schema_that_cannot_be_enforced_is_left_to_the_format() -> None:
    tool = ToolSchema("f", parameters({"not": {}}), param="tools")
    assert [each.name for each in arguments_of(tool)] == ["a", "b"]
