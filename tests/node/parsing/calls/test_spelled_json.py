"""Calls of the formats whose calls are JSON: what is spelled is read, and models' own writing is
among it."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.registry import layout_for
from tests.node.parsing.drawing import Drawer, Piece, outputs

FIND = {
    "type": "object",
    "properties": {
        "where": {"type": "string"},
        "depth": {"type": "integer"},
        "kind": {"enum": ["file", "</tool_call>", 'a "b" \\', None]},
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["where"],
}
SEND = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/person"},
        "exact": {"type": ["boolean", "null"]},
        "size": {"type": "number", "minimum": 0, "maximum": 10},
    },
    "required": ["to", "exact"],
    "$defs": {
        "person": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
TOOLS = (
    ToolSchema("find", FIND, param="tools[0].function.parameters"),
    ToolSchema("mail.send-it_2", SEND, param="tools[1].function.parameters"),
    ToolSchema("ping", {}, param="tools[2].function.parameters"),
)
CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

FORMATS = [
    "auto",
    "apriel",
    "bracket",
    "command_r_plus",
    "deepseek_v3",
    "deepseek_v31",
    "ernie45",
    "firefunction",
    "function_xml",
    "functionary_v31",
    "gigachat3",
    "granite",
    "granite_20b_fc",
    "hermes",
    "hunyuan_a13b",
    "internlm2",
    "jamba",
    "kimi_k2",
    "llama3_json",
    "mistral",
    "nemotron_toolcall",
    "phi4_functools",
    "reka_edge",
    "xlam",
]
SPECIAL: dict[str, tuple[str, ...]] = {
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "gigachat3": ("<|message_sep|>", "<|role_sep|>"),
    "granite": ("<|tool_call|>",),
    "hermes": ("<tool_call>", "</tool_call>"),
    "hy_v3": (
        "<tool_calls>",
        "</tool_calls>",
        "<tool_call>",
        "</tool_call>",
        "<tool_sep>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "internlm2": ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "phi4_functools": ("<|tool_call|>", "<|/tool_call|>"),
}
VOCABULARIES = [(form, ()) for form in FORMATS] + list(SPECIAL.items())


def spelled(lark: Lark, form: str, *, parallel: bool) -> str:
    grammar = layout_for("none", form)
    return grammar.spell_answer_calls(lark, TOOLS, "", parallel=parallel)


def calls_of(parts: list[Part]) -> list[tuple[str, Any]]:
    """(name, arguments) of each."""
    assert not "".join(each.text for each in parts if each.kind is PartKind.CONTENT).strip()
    names = [each.name for each in parts if each.kind is PartKind.TOOL_START]
    texts = [each.text for each in parts if each.kind is PartKind.TOOL_ARGS]
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


SCHEMAS = {tool.name: tool.parameters or CLOSED for tool in TOOLS}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}


def check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        VALIDATORS[name].validate(arguments)
        assert arguments.keys() <= SCHEMAS[name]["properties"].keys()


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("form", "markers"), VOCABULARIES)
def test_what_is_spelled_is_read(form: str, markers: tuple[str, ...], parallel: bool) -> None:
    seeds = range(16 if parallel else 4)
    drawn = outputs(markers, lambda lark: spelled(lark, form, parallel=parallel), seeds)
    assert len(drawn) > len(seeds) // 2
    output = OutputFormat(tool_calls=form, tools=TOOLS, repeated_calls=True)
    counts = set()
    for drawer, pieces in drawn:
        calls = calls_of(drawer.parts(output, pieces))
        check(calls)
        counts.add(len(calls))
    assert 0 not in counts
    assert counts == {1} if not parallel else len(counts) > 1


OBJECT = '{"name": "find", "arguments": {"where": "a"}}'
PING = '{"name": "ping", "arguments": {}}'
WRITTEN = [
    ("auto", f"<tool_call>\n{OBJECT}\n</tool_call>"),
    ("apriel", f"<tool_calls>[{OBJECT}, {PING}]</tool_calls>"),
    ("bracket", '[Calling tool: find({"where": "a"})]\n[Calling tool: ping({})]'),
    (
        "command_r_plus",
        'Action:\n```json\n[\n    {\n        "tool_name": "find",\n        "parameters": {\n'
        '            "where": "a"\n        }\n    }\n]\n```',
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
        '{"where":"a"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
        '{"where": "a"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ("ernie45", f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{PING}\n</tool_call>"),
    ("firefunction", f"functools[{OBJECT}, {PING}]"),
    ("firefunction", f" functools[{OBJECT}]"),
    (
        "function_xml",
        '<function>\n<name>find</name>\n<arguments>{"where": "a"}</arguments>\n</function>',
    ),
    ("functionary_v31", '<function=find>{"where": "a"}</function><function=ping>{}</function>'),
    ("gigachat3", f"<|function_call|>{OBJECT}"),
    ("granite", f"<|tool_call|>[{OBJECT}, {PING}]"),
    ("granite_20b_fc", f"<function_call> {OBJECT} <function_call> {PING}"),
    ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{PING}\n</tool_call>"),
    ("hunyuan_a13b", f"<tool_calls>[{OBJECT}, {PING}]</tool_calls>"),
    (
        "hy_v3",
        "<tool_calls:opensource>\n<tool_call:opensource>find<tool_sep:opensource>\n"
        "<arg_key:opensource>where</arg_key:opensource>\n"
        "<arg_value:opensource>a</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
    ),
    (
        "internlm2",
        '<|action_start|><|plugin|>\n{"name": "find", "parameters": {"where": "a"}}<|action_end|>',
    ),
    ("jamba", f"<tool_calls>[\n  {OBJECT},\n  {PING}\n]</tool_calls>"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
        '<|tool_call_argument_begin|>{"where": "a"}<|tool_call_end|><|tool_call_begin|>'
        "functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ),
    (
        "llama3_json",
        '{"name": "find", "parameters": {"where": "a"}}; {"name": "ping", "parameters": {}}',
    ),
    ("mistral", f'[TOOL_CALLS] [{OBJECT}, {PING[:-1]}, "id": "a1B2c3D4e"}}]'),
    ("nemotron_toolcall", f"<TOOLCALL>[{OBJECT}, {PING}]</TOOLCALL>"),
    ("phi4_functools", f"functools[{OBJECT}]"),
    ("phi4_functools", f"<|tool_call|>[{OBJECT}]<|/tool_call|>"),
    ("reka_edge", f"<tool_call>\n{OBJECT}</tool_call>"),
    ("xlam", f"[{OBJECT}, {PING}]"),
]


@pytest.mark.parametrize(("form", "text"), WRITTEN)
def test_the_grammar_accepts_what_the_models_write(form: str, text: str) -> None:
    pieces: list[Piece] = [(bytes([byte]), False) for byte in text.encode()]
    drawer = Drawer()
    lark = drawer.lark()
    assert drawer.takes(lark.grammar(spelled(lark, form, parallel=True)), pieces)
    output = OutputFormat(tool_calls=form, tools=TOOLS)
    assert calls_of(drawer.parts(output, pieces))[0] == ("find", {"where": "a"})


@pytest.mark.parametrize(
    ("markers", "text"),
    [
        (
            ("[TOOL_CALLS]", "[ARGS]"),
            '[TOOL_CALLS]find[ARGS]{"where": "a"}[TOOL_CALLS]ping[ARGS]{}',
        ),
        (SPECIAL["mistral"], '[TOOL_CALLS]find[CALL_ID]a1B2c3D4e[ARGS]{"where": "a"}'),
    ],
)
def test_mistral_spells_the_generation_that_the_vocabulary_shows(
    markers: tuple[str, ...], text: str
) -> None:
    drawer = Drawer(markers)
    lark = drawer.lark()
    assert drawer.takes(lark.grammar(spelled(lark, "mistral", parallel=True)), drawer.cut(text))


def test_a_tool_without_parameters_is_called_with_none() -> None:
    lark = Drawer().lark()
    tools = (ToolSchema("ping"),)
    start = layout_for("none", "hermes").spell_answer_calls(lark, tools, "", parallel=False)
    drawer = Drawer()
    text = '<tool_call>{"name": "ping", "arguments": {"a": 1}}</tool_call>'
    assert not drawer.takes(lark.grammar(start), drawer.cut(text))


@pytest.mark.parametrize("form", ["kimi_k2", "deepseek_v31", "functionary_v31", "bracket"])
def test_a_name_that_is_not_read_back_is_refused(form: str) -> None:
    tools = (ToolSchema("a <b>\n", param="tools[0].function.name"),)
    with pytest.raises(UnsupportedConstraint) as refused:
        layout_for("none", form).spell_answer_calls(Drawer().lark(), tools, "", parallel=True)
    assert refused.value.param == "tools[0].function.name"


@pytest.mark.parametrize("form", ["llama3_json", "xlam"])
def test_bare_calls_are_not_forced_behind_a_begun_answer(form: str) -> None:
    tail = "<|im_start|>assistant\nThe weather is"
    with pytest.raises(UnsupportedConstraint):
        layout_for("none", form).spell_answer_calls(Drawer().lark(), TOOLS, tail, parallel=True)
