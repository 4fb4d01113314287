"""JSON values lose their nulls, and must be the same for all parsers."""

from typing import Any

import pytest

from node.dialects.chat.tools import read_tools
from node.dialects.fields.json_values import json_without_null, tool_schema
from node.errors import BadRequest


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_null_fields_are_removed_and_nulls_of_a_list_stay() -> None:
    given = {"a": None, "b": ["c", None, {"d": None}], "e": {"f": None}, "const": None}
    assert json_without_null(given, "p") == {"b": ["c", None, {}], "e": {}}


def test_a_schema_loses_keywords_that_are_null_and_no_value_that_it_allows() -> None:
    kept: dict[str, Any] = {
        "type": ["object", "null"],
        "properties": {
            "none": {"const": None},
            "one": {"enum": [None, {"deep": None}, [None]]},
            "some": {"const": {"deep": {"a": None}}},
            "enum": {"type": "array", "items": {"anyOf": [{"const": None}, {"type": "null"}]}},
        },
        "$defs": {"const": {"type": "string"}},
    }
    given = {
        **kept,
        "description": None,
        "additionalProperties": None,
        "properties": {
            **kept["properties"],
            "enum": {**kept["properties"]["enum"], "title": None, "default": None},
            "gone": None,
        },
        "$defs": {"const": {"type": "string", "format": None}},
    }
    assert tool_schema(given, "p") == kept
    (found,) = read_tools([tool(parameters=given)]).tools
    assert found.parameters == found.function["parameters"] == kept


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, float("inf"), float("nan")])
def test_numbers_that_not_every_reader_of_json_accepts_are_refused(number: float) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools([tool(parameters={"properties": {"a": [{"maximum": number}]}})])
    assert caught.value.param == "tools[0].function.parameters"
    for deep in ({"const": number}, {"enum": [{"a": [number]}]}):
        with pytest.raises(BadRequest):
            read_tools([tool(parameters={"properties": {"a": deep}})])
    assert json_without_null([2**63, True, -1.5], "p") == [2**63, True, -1.5]
