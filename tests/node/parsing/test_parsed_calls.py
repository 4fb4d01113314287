"""Tests what counts as a call, whatever format it is written in."""

import pytest

from tests.node.parsing.reading import Parsed, Tools, read

TOOLS: Tools = {
    "find": {
        "type": "object",
        "properties": {"where": {"type": "string"}},
        "required": ["where"],
    },
    "ping": {"type": "object", "properties": {}},
}

WRITTEN = {
    "hermes": '<tool_call>{{"name": "{name}"{named}}}</tool_call>',
    "jamba": '<tool_calls>[{{"name": "{name}"{named}}}]</tool_calls>',
    "command_r_plus": 'Action: ```json\n[{{"tool_name": "{name}"{named}}}]\n```',
    "bracket": '[TOOL_CALL]{{"name": "{name}"{named}}}[/TOOL_CALL]',
    "mistral": '[TOOL_CALLS][{{"name": "{name}"{named}}}]',
}
"""By format: a call, with what stands behind the name."""
BARE = {
    "kimi_k2": "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|><|tool_call_end|>",
    "deepseek_v31": (
        "<\uff5ctool\u2581call\u2581begin\uff5c>{name}<\uff5ctool\u2581sep\uff5c>"
        "<\uff5ctool\u2581call\u2581end\uff5c>"
    ),
    "functionary_v31": "<function={name}></function>",
    "function_xml": "<function><name>{name}</name><arguments></arguments></function>",
    "llama3_json": '{{"name": "{name}", "parameters": null}}',
    "xlam": '[{{"name": "{name}", "arguments": ""}}]',
}
"""By format: a call without arguments."""


def text_of(form: str, name: str, named: str) -> str:
    return WRITTEN[form].format(name=name, named=named)


@pytest.mark.parametrize("named", ["", ', "arguments": null', ', "arguments": ""'])
@pytest.mark.parametrize("form", WRITTEN)
def test_no_arguments_are_none_only_where_the_tool_needs_none(form: str, named: str) -> None:
    assert read(text_of(form, "ping", named), tool_calls=form, tools=TOOLS) == Parsed(
        calls=(("ping", {}),)
    )
    text = text_of(form, "find", named)
    assert read(text, tool_calls=form, tools=TOOLS) == Parsed(text)


@pytest.mark.parametrize("form", BARE)
def test_neither_are_they_made_up_without_json(form: str) -> None:
    text = BARE[form].format(name="ping")
    assert read(text, tool_calls=form, tools=TOOLS) == Parsed(calls=(("ping", {}),))
    text = BARE[form].format(name="find")
    assert read(text, tool_calls=form, tools=TOOLS) == Parsed(text)


@pytest.mark.parametrize("target", ["ping", "find"])
def test_nor_where_a_header_names_the_tool(target: str) -> None:
    text = f"<|channel|>commentary to=functions.{target}<|message|><|call|>"
    parsed = read(text, reasoning="harmony", tool_calls="harmony", tools=TOOLS)
    assert parsed.calls == ((("ping", {}),) if target == "ping" else ())


@pytest.mark.parametrize("key", ["arguments", "parameters", "args"])
@pytest.mark.parametrize("arguments", ['{"where": "a"}', '"{\\"where\\": \\"a\\"}"'])
@pytest.mark.parametrize("form", WRITTEN)
def test_arguments_are_an_object_or_the_text_of_one(form: str, arguments: str, key: str) -> None:
    text = text_of(form, "find", f', "{key}": {arguments}')
    assert read(text, tool_calls=form, tools=TOOLS) == Parsed(calls=(("find", {"where": "a"}),))


@pytest.mark.parametrize("arguments", ["[]", "1", "true", '"x"', '"[1]"'])
@pytest.mark.parametrize("form", WRITTEN)
def test_anything_else_is_no_arguments(form: str, arguments: str) -> None:
    text = text_of(form, "ping", f', "arguments": {arguments}')
    assert read(text, tool_calls=form, tools=TOOLS) == Parsed(text)
