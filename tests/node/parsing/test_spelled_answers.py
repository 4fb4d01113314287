"""Tests the constraints of whole answers: the text around reasoning, content and calls."""

import json
from typing import Any

import pytest

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.calls.marked import MarkedLayout
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.format import OutputLayout
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for, reasoning_names, tool_call_names
from tests.node.parsing.drawing import Drawer, outputs

MARKED = [
    name
    for name in reasoning_names()
    if name != "none" and isinstance(layout_for(name, "none"), MarkedLayout)
]
CALLS = [name for name in tool_call_names() if isinstance(layout_for("none", name), MarkedLayout)]
WRAPPED = {
    "granite": ("<response>", "</response>"),
    "hunyuan_a13b": ("<answer>", "</answer>"),
    "ernie45": ("<response>", "</response>"),
    "apriel": ("", "[END FINAL RESPONSE]"),
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 8}, "b": {"enum": ["<response>", 1]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = (ToolSchema("ping"),)
ASSISTANT = "<|im_start|>assistant\n"


def begun(name: str) -> OutputFormat:
    """Returns the format of an output behind a prompt that has begun the reasoning."""
    return OutputFormat(name, prompt_tail=ASSISTANT + layout_for(name, "none").opener + "\n")


def content(parts: list[Part]) -> str:
    return "".join(each.text for each in parts if each.kind is PartKind.CONTENT)


def takes(form: OutputLayout, text: str, tail: str | None, answer: str = "yes") -> bool:
    drawer = Drawer()
    lark = drawer.lark()
    start = form.spell_text(lark, lark.text(answer), tail)
    return drawer.takes(lark.grammar(start), drawer.cut(text))


@pytest.mark.parametrize("name", MARKED)
def test_a_machine_knows_before_any_text_that_it_begins_within_reasoning(name: str) -> None:
    assert OutputParser(begun(name)).in_reasoning


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("thought", ["", "hm", "hm\n", "hm <thi", "a </"])
def test_the_closing_ends_the_reasoning(name: str, thought: str) -> None:
    machine = OutputParser(begun(name))
    machine.feed(thought)
    assert machine.in_reasoning
    closing = layout_for(name, "none").closing
    assert closing
    parts = machine.feed(closing)
    assert not machine.in_reasoning
    assert content([*parts, *machine.feed("\n\nyes"), *machine.finish()]) == "yes"


@pytest.mark.parametrize("name", MARKED)
def test_reasoning_may_still_begin_only_where_it_has_not(name: str) -> None:
    form = layout_for(name, "none")
    openings = form.reasoning_openings(ASSISTANT)
    is_implicit = OutputParser(OutputFormat(name, prompt_tail=ASSISTANT)).in_reasoning
    assert bool(openings) != is_implicit
    for opening in openings:
        machine = OutputParser(OutputFormat(name, prompt_tail=ASSISTANT))
        machine.feed(opening)
        assert machine.in_reasoning
    assert form.reasoning_openings(begun(name).prompt_tail) == ()
    closed = f"{begun(name).prompt_tail}{form.closing}\n\n"
    assert form.reasoning_openings(closed) == ()
    assert not OutputParser(OutputFormat(name, prompt_tail=closed)).in_reasoning
    assert form.reasoning_openings(f"{ASSISTANT}The answer is") == ()


def test_without_reasoning_nothing_is_closed() -> None:
    form = layout_for("none", "none")
    assert form.closing == ""
    assert form.reasoning_openings(ASSISTANT) == ()
    assert takes(form, "yes", ASSISTANT)
    assert not takes(form, "\nyes", ASSISTANT)


@pytest.mark.parametrize("name", MARKED)
def test_two_line_ends_may_part_reasoning_and_answer(name: str) -> None:
    form = layout_for(name, "none")
    for before in ("", "\n", "\n\n"):
        assert takes(form, f"{before}yes", None)
    for text in ("\n\n\nyes", " yes", "no", "yes\nyes"):
        assert not takes(form, text, None)
    assert not takes(form, "\nyes", f"{ASSISTANT}<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", MARKED)
def test_line_ends_may_follow_reasoning_that_the_prompt_has_ended(name: str) -> None:
    form = layout_for(name, "none")
    closed = f"{ASSISTANT}{form.opener}{form.closing}"
    for before in ("", "\n", "\n\n"):
        assert takes(form, f"{before}yes", closed)
    assert not takes(form, "\n\n\nyes", closed)
    assert not takes(form, "\nyes", f"{closed}\n")
    parts = OutputParser(OutputFormat(name, prompt_tail=closed)).feed("\n\nyes")
    assert content(parts).strip() == "yes"


@pytest.mark.parametrize(("name", "marks"), WRAPPED.items())
def test_marks_around_the_answer_may_be_generated(name: str, marks: tuple[str, str]) -> None:
    form = layout_for(name, "none")
    begin, end = marks
    text = f"\n{begin}\nyes\n{end}"
    assert takes(form, text, None)
    machine = OutputParser(begun(name))
    parts = machine.feed(form.closing + text) + machine.finish()
    assert content(parts).strip() == "yes"


@pytest.mark.parametrize("name", MARKED)
def test_json_that_is_drawn_is_the_content(name: str) -> None:
    form = layout_for(name, "none")

    def spell(lark: Lark) -> str:
        answer = form.spell_text(lark, lark.json(SCHEMA, "response_format"), None)
        return f"{lark.text(form.closing)} {answer}"

    drawn = outputs((), spell, range(6))
    assert drawn
    for drawer, pieces in drawn:
        value = json.loads(content(drawer.parts(begun(name), pieces)))
        assert value.keys() == {"a", "b"}
        assert value["b"] in ("<response>", 1)


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("name", ["think", "granite"])
def test_calls_follow_reasoning(name: str, calls: str) -> None:
    form = layout_for(name, calls)

    def spell(lark: Lark) -> str:
        answer = form.spell_answer_calls(lark, TOOLS, None, parallel=False)
        return f"{lark.text(form.closing)} {answer}"

    if calls == "none":
        with pytest.raises(UnsupportedConstraint) as refused:
            spell(Drawer().lark())
        assert refused.value.param == "tool_choice"
        return
    output = OutputFormat(name, calls, begun(name).prompt_tail, TOOLS)
    for drawer, pieces in outputs((), spell, range(2)):
        parts = drawer.parts(output, pieces)
        arguments = [each.text for each in parts if each.kind is PartKind.TOOL_ARGS]
        assert [json.loads(each) for each in arguments] == [{}]
        assert not content(parts).strip()


def test_an_answer_may_begin_with_the_closer_where_models_do() -> None:
    form = layout_for("minimax_m3", "none")
    assert takes(form, "</mm:think>yes", ASSISTANT)
    assert takes(form, "yes", ASSISTANT)
    assert not takes(form, "</mm:think>yes", None)
