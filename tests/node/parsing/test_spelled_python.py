"""Calls with braces, and in Python's syntax: what is spelled is read, and models' own writing is
among it."""

from typing import Any

import pytest

from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from tests.node.parsing.spelled_calls import TEXT, TOOLS, check_drawn, spelled, takes

MARKERS: dict[str, tuple[str, ...]] = {
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": (),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}
"""The markers that the families' vocabularies have as tokens, by format."""
FIND = {
    "find": {
        "properties": {
            "where": TEXT,
            "depth": {"type": "integer"},
            "exact": {"type": ["boolean", "null"]},
            "filter": {"type": "object"},
            "names": {"type": "array", "items": TEXT},
        }
    },
    "ping": {},
}
PYTHON = (
    'find(where="a\\n\\"b\\"", depth=-2, exact=None, filter={"k": [True, 1.5]}, '
    "names=['x', \"it's\"])"
)


@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("form", MARKERS)
def test_what_is_spelled_is_read_as_calls_that_fit(form: str, kind: str) -> None:
    alone = check_drawn(form, TOOLS[kind])
    several = check_drawn(form, TOOLS[kind], MARKERS[form], parallel=True)
    assert alone + several > 0


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            "gemma4",
            "<|tool_call>call:find{depth:-2,exact:true,filter:{deep:{n:1.5,none:null}},"
            'names:[<|"|>x<|"|>,<|"|><|"|>],where:<|"|>a } , b:"c"\n<|"|>}<tool_call|>',
        ),
        ("gemma4", "<|tool_call>call:ping{}<tool_call|>"),
        (
            "functiongemma",
            "<start_function_call>call:find{where:<escape>a<escape>,names:[]}<end_function_call>",
        ),
        ("lfm2", f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>"),
        ("pythonic", f"[{PYTHON}]"),
        (
            "lfm2",
            '<|tool_call_start|>[find(where=\'a\nb\', filter={"deep": true, "l": [null, "a"]})]'
            "<|tool_call_end|>",
        ),
        ("olmo3", f"<function_calls>\n{PYTHON}\n</function_calls>"),
        ("olmo3", "<function_calls>\nping()\n</function_calls>"),
    ],
)
def test_a_model_writes_as_it_does(form: str, text: str) -> None:
    assert takes(form, FIND, text)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("gemma4", "<|tool_call>call:ping{}<tool_call|>" * 2),
        ("pythonic", "[ping(), ping()]"),
        ("lfm2", "<|tool_call_start|>[ping(), ping()]<|tool_call_end|>"),
        ("olmo3", "<function_calls>\nping()\nping()\n</function_calls>"),
    ],
)
def test_several_calls_only_where_they_may_be(form: str, text: str, *, parallel: bool) -> None:
    assert takes(form, FIND, text, parallel=parallel) is parallel


def python(value: str, **schema: Any) -> bool:
    """Returns True if the value may be written for the schema."""
    tools = {"f": {"properties": {"a": {"$defs": {}, **schema}}}}
    return takes("pythonic", tools, f"[f(a={value})]")


def test_values_are_constrained_to_their_schema() -> None:
    assert python('"abc"', type="string", minLength=3, maxLength=3)
    assert python('"a\\nc"', type="string", minLength=3, maxLength=3)
    assert not python('"ab"', type="string", minLength=3)
    assert python('"ab"', type="string", pattern="^a", maxLength=2)
    assert not python('"abc"', type="string", pattern="^a", maxLength=2)
    assert python('"2026-02-28"', type="string", format="date")
    assert python("5", type="integer", minimum=5)
    assert not python("4", type="integer", minimum=5)
    assert python('"a\\"b"', enum=['a"b', ["c"], 2, None])
    assert python("2", enum=['a"b', ["c"], 2, None])
    assert python("None", enum=['a"b', ["c"], 2, None])
    assert not python("True", enum=['a"b', ["c"], 2, None])


def test_lists_and_objects_are_constrained_to_their_schema() -> None:
    items = {"type": "integer"}
    assert python("[1, 2]", type="array", items=items, minItems=2, maxItems=2)
    assert not python("[1]", type="array", items=items, minItems=2)
    assert not python("[1, 2, 3]", type="array", items=items, maxItems=2)
    assert python("[]", type="array", items=items, maxItems=0)
    assert not python("[1]", type="array", items=False)
    members = {"x": {"type": "integer"}, "y": TEXT}
    assert python('{"x": 1, "y": "a"}', type="object", properties=members, required=["x"])
    assert python('{"x": 1}', type="object", properties=members, required=["x"])
    assert not python('{"y": "a"}', type="object", properties=members, required=["x"])
    assert python("{}", type="object", additionalProperties=False)
    assert not python('{"x": 1}', type="object", additionalProperties=False)
    assert python('{"any thing": 1}', type="object", additionalProperties=items)
    assert not python('{"any": "x"}', type="object", additionalProperties=items)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "prefixItems": [{}]}, "prefixItems"),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, "propertyNames"),
        ({"type": "object", "patternProperties": {"^a": {}}}, "patternProperties"),
        ({"enum": [["a"]]}, "values"),
        ({"not": {"type": "string"}}, "not"),
        (False, "no value"),
    ],
)
def test_a_schema_that_is_not_enforced_is_refused(schema: Any, why: str) -> None:
    tools = {"f": {"properties": {"a": schema}, "required": ["a"]}}
    with pytest.raises(UnsupportedConstraint, match=why) as refused:
        spelled(Lark({}), "olmo3", tools)
    assert refused.value.param == "tools.f"


@pytest.mark.parametrize(
    ("form", "name"), [("pythonic", "a b"), ("pythonic", "a="), ("functiongemma", "a<escape>")]
)
def test_a_name_that_would_not_be_read_is_refused(form: str, name: str) -> None:
    with pytest.raises(UnsupportedConstraint, match="name"):
        spelled(Lark({}), form, {"f": {"properties": {name: TEXT}}})


def test_a_name_that_is_not_bare_is_quoted() -> None:
    tools = {"f": {"properties": {"a b": TEXT}}}
    assert takes("gemma4", tools, '<|tool_call>call:f{<|"|>a b<|"|>:<|"|>x<|"|>}<tool_call|>')


def test_no_string_contains_what_ends_its_block() -> None:
    tools = {"f": {"properties": {"a": TEXT, "e": {"enum": ["</function_calls>", "y"]}}}}
    text = "<function_calls>\nf({})\n</function_calls>"
    assert takes("olmo3", tools, text.format('a="</function_calls"'))
    assert not takes("olmo3", tools, text.format('a="</function_calls>"'))
    assert not takes("olmo3", tools, text.format('e="</function_calls>"'))
    assert takes("olmo3", tools, text.format('e="y"'))
    text = '<|tool_call>call:f{{a:<|"|>{}<|"|>}}<tool_call|>'
    tools = {"f": {"properties": {"a": {"enum": ['<|"|>', "y"]}}}}
    assert not takes("gemma4", tools, text.format('<|"|>'))
    assert takes("gemma4", tools, text.format("y"))
