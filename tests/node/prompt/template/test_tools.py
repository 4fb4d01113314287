"""Tools in a form that the template supports."""

import json
from typing import Any
from unittest import mock

import pytest

from node.errors import BadRequest
from node.prompt.template import tools as tools_module
from node.prompt.template.abilities import find_abilities
from node.prompt.template.chat import ChatRenderer
from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.tools import TemplateTools
from node.request import Tool
from tests.node.prompt.template.samples import OPEN, POOR, WEATHER, asking
from tests.node.prompt.template.test_messages import USER

# Spells types with a program, as those of Hermes do: it does not end for a type unknown to it.
TYPED = (
    "{% macro spell(type) %}{% if type in ('string', 'integer', 'object') %}{{ type }}"
    "{% else %}{% for t in type %}{{ spell(t) }}{% endfor %}{% endif %}{% endmacro %}"
)
EACH = "{% for name, p in t.function.parameters.properties.items() %}"


def needing(spelled: str) -> TemplateTools:
    """Returns the tools of a template that has `spelled` before each tool's JSON."""
    return tools_of(TYPED + OPEN.replace("{{ t | tojson }}", spelled + "{{ t | tojson }}"))


def tools_of(text: str) -> TemplateTools:
    template = ChatTemplate(text, {})
    return TemplateTools(template, find_abilities(template))


def shown(tools: TemplateTools, parameters: Any = None, **function: Any) -> dict[str, Any]:
    given = {"name": "f", **function}
    if parameters is not None:
        given["parameters"] = parameters
    before = json.dumps(given)
    listed = tools.listed((Tool(given),))
    assert json.dumps(given) == before
    assert listed is not None
    assert [tool["type"] for tool in listed] == ["function"]
    found: dict[str, Any] = listed[0]["function"]
    return found


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": True}},
        {"properties": ["a"]},
    ],
)
def test_tools_are_given_as_the_client_sent_them_where_the_template_accepts_that(
    parameters: Any,
) -> None:
    expected = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    assert shown(tools_of(OPEN), parameters) == expected


def test_no_tools_are_none_or_an_empty_list() -> None:
    assert tools_of(OPEN).listed(()) is None
    assert tools_of(OPEN.replace("{% if tools %}", "{% if tools | length %}")).listed(()) == []
    assert tools_of(POOR).listed((WEATHER,)) is None


def test_tools_that_show_with_a_system_message_only_are_given() -> None:
    text = OPEN.replace("if tools", "if tools and messages[0].role == 'system'")
    assert shown(tools_of(text)) == {"name": "f"}


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": ["a"]}])
def test_what_a_tool_lacks_is_there_and_empty(parameters: Any) -> None:
    empty = {"type": "object", "properties": {}}
    expected = {"name": "f", "description": "", "parameters": empty}
    assert shown(needing(EACH + "{% endfor %}"), parameters) == expected
    assert shown(needing("{{ '' + t.function.description }}"))["description"] == ""
    kept = shown(needing(EACH + "{% endfor %}"), {**empty, "required": []}, description="d")
    assert kept == {"name": "f", "description": "d", "parameters": {**empty, "required": []}}


def test_descriptions_of_properties_are_there_and_empty() -> None:
    needy = needing(EACH + "{% if p != true %}{{ '' + p.description }}{% endif %}{% endfor %}")
    properties = {"a": {"type": "string"}, "b": True, "c": {"description": "c"}}
    made = shown(needy, {"type": "object", "properties": properties})["parameters"]
    described = {"type": "string", "description": ""}
    assert made["properties"] == {"a": described, "b": True, "c": {"description": "c"}}


def test_unions_are_their_first_type_in_all_of_the_schema() -> None:
    union = {"type": ["null", "string", "integer"], "description": "d", "default": ["null"]}
    single = {**union, "type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "type": union,
            "b": {
                "type": ["object", "null"],
                "description": "b",
                "properties": {"c": union},
                "items": union,
                "anyOf": [union, True],
            },
        },
        "$defs": {"d": union},
    }
    made = shown(needing(EACH + "{{ spell(p.type) }}{% endfor %}"), schema)["parameters"]
    assert made == {
        "type": "object",
        "properties": {
            "type": single,
            "b": {
                "type": "object",
                "description": "b",
                "properties": {"c": single},
                "items": single,
                "anyOf": [single, True],
            },
        },
        "$defs": {"d": single},
    }


@pytest.mark.parametrize(
    "properties",
    [{"a": {"type": "odd"}}, {"a": {"type": "null"}}, {"a": 5}, {"a": {"type": {"b": "c"}}}],
)
def test_a_schema_that_the_template_cannot_spell_goes_into_the_description(properties: Any) -> None:
    schema = {"type": "object", "properties": properties}
    tools = needing(EACH + "{{ spell(p.type + '') }}{% endfor %}")
    made = shown(tools, schema, description="Does it.")
    assert made["parameters"] == {"type": "object", "properties": {}}
    text = f"Its parameters as JSON Schema: {json.dumps(schema)}"
    assert made["description"] == f"Does it.\n\n{text}"
    assert shown(tools, schema)["description"] == text


def test_a_tool_that_the_template_accepts_in_no_form_is_refused_as_a_tool() -> None:
    picky = "{% if t.function.name.startswith('word') and not t.function.description %}"
    refusing = picky + "{{ raise_exception('No.') }}{% endif %}{{ '' + t.function.extra.no }}"
    text = OPEN.replace(
        "{{ t | tojson }}", "{% if t.function.extra %}" + refusing + "{% endif %}{{ t | tojson }}"
    )
    renderer = ChatRenderer(ChatTemplate(text, {}), "hermes")
    tool = Tool({"name": "f", "extra": {"a": 1}})
    with pytest.raises(BadRequest, match="the tool f") as caught:
        renderer.render(asking(USER, tools=(WEATHER, tool)))
    assert caught.value.param == "tools"
    assert renderer.render(asking(USER, tools=(WEATHER,)))


def test_each_tool_is_tried_once() -> None:
    tools = tools_of(OPEN)
    with mock.patch.object(tools._probe, "shows", wraps=tools._probe.shows) as tried:
        for _ in range(3):
            tools.listed((WEATHER, Tool({"name": "other"})))
        assert tried.call_count == 2
        with mock.patch.object(tools_module, "MAX_KNOWN", 2):
            tools.listed((Tool({"name": "third"}), WEATHER))
        assert tried.call_count == 4
