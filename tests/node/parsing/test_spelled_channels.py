"""Outputs of channels that are constrained to something are read as just that."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.registry import layout_for
from tests.node.parsing.drawing import Drawer, Piece, outputs
from tests.node.parsing.spelled_calls import check_drawn, takes

FIND = ToolSchema(
    "find_it",
    {
        "type": "object",
        "properties": {
            "where": {"type": "string", "maxLength": 30},
            "depth": {"type": "integer"},
            "exact": {"type": "boolean"},
            "kind": {"enum": ["file", "folder"]},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
            "filter": {
                "type": "object",
                "properties": {"size": {"type": "number", "minimum": 0, "maximum": 99}},
                "required": ["size"],
                "additionalProperties": False,
            },
        },
        "required": ["where", "kind"],
    },
)
PING = ToolSchema("ping")
NOTE = ToolSchema(
    "note",
    {
        "type": "object",
        "properties": {
            "text": {"type": ["string", "null"], "maxLength": 30},
            "rate": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 9}]},
        },
        "required": ["text"],
    },
)
TOOLS = (FIND, PING, NOTE)
SEEDS = range(5)
"""Seeds of each format behind each of some prompts."""

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
COMMAND = (
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
)
COMMAND_NORTH = (*COMMAND[:2], "<|START_TEXT|>", "<|END_TEXT|>", *COMMAND[4:])
INKLING = (
    "<|message_model|>",
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
)
K3 = ("<|open|>", "<|close|>", "<|sep|>")
MUSE = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
SOLAR = (
    "<|begin|>",
    "<|think|>",
    "<|content|>",
    "<|end|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|calls|>",
)
_K3_HEAD = '<|open|>message role="assistant"<|sep|>'

FORMATS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "harmony": (
        "harmony",
        HARMONY,
        ("", "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"),
    ),
    "command_r": (
        "command_r",
        COMMAND,
        (
            "",
            "<|CHATBOT_TOKEN|>",
            "<|CHATBOT_TOKEN|><|START_RESPONSE|>",
            "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
        ),
    ),
    "command_r of other tokens": ("command_r", COMMAND_NORTH, ("<|CHATBOT_TOKEN|>",)),
    "functionary_v32": (
        "functionary_v32",
        (),
        ("<|end_header_id|>\n\n>>>", "<|end_header_id|>\n\n", "<|from|>assistant\n<|recipient|>"),
    ),
    "inkling": (
        "inkling",
        INKLING,
        ("", "<|message_model|>", "<|message_model|><|content_text|>"),
    ),
    "kimi_k3": ("kimi_k3", K3, ("", _K3_HEAD, f"{_K3_HEAD}<|open|>response<|sep|>")),
    "muse": (
        "muse",
        MUSE,
        ("", "<|start|>assistant", "<|start|>assistant to=user<|message|>"),
    ),
    "solar": (
        "solar",
        SOLAR,
        (
            "",
            "<|begin|>assistant",
            "<|begin|>assistant<|think|><|end|><|begin|>assistant",
            "<|begin|>assistant<|content|>",
        ),
    ),
    "ui_tars": ("ui_tars", (), ("", "<|im_start|>assistant\n")),
}
ENDED = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>",
    "command_r": "<|CHATBOT_TOKEN|><|START_THINKING|>",
    "inkling": "<|message_model|><|content_thinking|>",
    "kimi_k3": f"{_K3_HEAD}<|open|>think<|sep|>",
    "muse": "<|start|>assistant to=self<|message|>",
    "solar": "<|begin|>assistant<|think|>",
    "ui_tars": "",
}
"""Ends of prompts that have begun the reasoning."""
CASES = [(name, tail) for name, (_, _, tails) in FORMATS.items() for tail in (*tails, None)]
"""A tail of None: behind reasoning that the format's closing has ended."""


def cases(without: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Names of formats, and what the answer follows, reasoning but for some formats."""
    known = [
        (name, tail)
        for name, tail in CASES
        if tail is not None or (FORMATS[name][0] in ENDED and name not in without)
    ]
    return pytest.mark.parametrize(("name", "tail"), known)


def parts_of(name: str, tail: str | None, drawer: Drawer, pieces: Sequence[Piece]) -> list[Part]:
    """Returns the parts of an answer behind a prompt, or behind reasoning."""
    form = FORMATS[name][0]
    end = ENDED[form] if tail is None else tail
    begin = "Thought: Hm" if form == "ui_tars" else "Hm"
    before = drawer.cut(begin + layout_for(form, form).closing)
    output = OutputFormat(form, form, end, TOOLS)
    return drawer.parts(output, [*(before if tail is None else ()), *pieces])


def joined(parts: Sequence[Part], kind: PartKind) -> str:
    return "".join(part.text for part in parts if part.kind is kind)


# A thought of UI-TARS ends with an action.
@cases(without=("ui_tars",))
def test_an_answer_of_a_schema_is_read_as_the_value(name: str, tail: str | None) -> None:
    form, markers, _ = FORMATS[name]
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 30}, "n": {"type": "integer"}},
        "required": ["a", "n"],
        "additionalProperties": False,
    }
    drawn = outputs(
        markers,
        lambda lark: layout_for(form, form).spell_text(lark, lark.json(schema, "x"), tail),
        SEEDS,
    )
    assert len(drawn) > len(SEEDS) // 2
    for drawer, pieces in drawn:
        parts = parts_of(name, tail, drawer, pieces)
        jsonschema.validate(json.loads(joined(parts, PartKind.CONTENT)), schema)
        assert joined(parts, PartKind.REASONING) == ("Hm" if tail is None else "")
        assert not any(part.kind is PartKind.TOOL_START for part in parts)


@pytest.mark.parametrize("parallel", [False, True], ids=["one", "several"])
@cases()
def test_calls_are_read_as_calls_of_declared_tools(
    name: str, tail: str | None, *, parallel: bool
) -> None:
    form, markers, _ = FORMATS[name]
    seeds = range(12) if parallel else SEEDS
    drawn = outputs(
        markers,
        lambda lark: layout_for(form, form).spell_answer_calls(
            lark, TOOLS, tail, parallel=parallel
        ),
        seeds,
    )
    # Of what is drawn at random, a thought in bare text mostly has no end.
    assert len(drawn) > len(seeds) // 4
    counts = set()
    for drawer, pieces in drawn:
        parts = parts_of(name, tail, drawer, pieces)
        assert not joined(parts, PartKind.CONTENT).strip(), pieces
        if form != "ui_tars":
            assert joined(parts, PartKind.REASONING) == ("Hm" if tail is None else "")
        counts.add(check_calls(parts))
    assert 0 not in counts
    assert (max(counts) > 1) == (parallel and form != "harmony")


def check_calls(parts: Sequence[Part]) -> int:
    """Checks the calls and returns their number."""
    names = {part.index: part.name for part in parts if part.kind is PartKind.TOOL_START}
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for index, name in names.items():
        text = "".join(p.text for p in parts if p.kind is PartKind.TOOL_ARGS and p.index == index)
        arguments = json.loads(text)
        assert isinstance(arguments, dict)
        jsonschema.validate(arguments, schemas[name])
        assert arguments.keys() <= schemas[name].get("properties", {}).keys()
    return len(names)


@pytest.mark.parametrize("form", ["harmony", "muse", "solar", "functionary_v32"])
def test_a_name_that_is_not_read_back_is_refused(form: str) -> None:
    drawer = Drawer()
    tool = ToolSchema("to be", param="tools[0]")
    with pytest.raises(UnsupportedConstraint) as caught:
        layout_for(form, form).spell_answer_calls(drawer.lark(), (tool,), "", parallel=True)
    assert caught.value.param == "tools[0]"


def test_the_action_of_the_computer_is_the_name_of_the_call() -> None:
    point = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    properties = {"action": {"enum": ["click", "wait"]}, "point": point}
    schema = {"type": "object", "properties": properties, "required": ["action"]}
    tool, form = ToolSchema("computer", schema), layout_for("ui_tars", "ui_tars")
    drawn = outputs(
        (), lambda lark: form.spell_answer_calls(lark, (tool,), None, parallel=False), SEEDS
    )
    assert drawn
    for drawer, pieces in drawn:
        output = OutputFormat("ui_tars", "ui_tars", "", (tool,))
        parts = drawer.parts(output, [*drawer.cut("Action:"), *pieces])
        start, arguments = parts
        assert start.name == "computer"
        jsonschema.validate(json.loads(arguments.text), schema)


def test_points_are_written_as_the_model_is_used_to() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "array", "items": {"type": "number"}}},
    }
    drawer, form = Drawer(), layout_for("ui_tars", "ui_tars")
    lark = drawer.lark()
    start = form.spell_answer_calls(lark, (ToolSchema("tap", schema),), "", parallel=False)
    text = "Action: tap(at='<point>10 20</point>')"
    assert drawer.takes(lark.grammar(start), drawer.cut(text))


LOOP = {"type": "object", "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}
KIMI_SCHEMAS: list[dict[str, Any]] = [
    {"properties": {"v": {}}},
    {"properties": {"v": {"type": "object"}, "w": {"type": "array"}}},
    {"properties": {"v": {"$ref": "#/$defs/t"}}, "$defs": {"t": LOOP}},
    {"properties": {"v": {"enum": [1, "a", None]}, "w": {"type": ["integer", "string"]}}},
]


@pytest.mark.parametrize("markers", [(), FORMATS["kimi_k3"][1]], ids=["text", "tokens"])
@pytest.mark.parametrize("parameters", KIMI_SCHEMAS)
def test_arguments_of_any_type_are_constrained(
    parameters: dict[str, Any], markers: tuple[str, ...]
) -> None:
    assert check_drawn("kimi_k3", {"f": parameters}, markers)


def test_an_integer_is_declared_to_be_a_number() -> None:
    tools = {"f": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}}

    def call(kind: str, value: str) -> str:
        argument = f'<|open|>argument key="n" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        begin = '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        return f"{begin}{argument}<|close|>call<|sep|><|close|>tools<|sep|>"

    assert takes("kimi_k3", tools, call("number", "3"))
    assert not takes("kimi_k3", tools, call("number", "3.5"))
    assert not takes("kimi_k3", tools, call("string", "3"))
