"""Outputs of UI-TARS."""

import pytest

from tests.node.parsing.reading import Parsed, read

TOOLS = {"computer": {"type": "object"}}
CLICKED = ("computer", {"action": "click", "point": [10, 20]})


def parsed(text: str, **options: str) -> Parsed:
    return read(text, tools=TOOLS, **{"reasoning": "ui_tars", "tool_calls": "ui_tars", **options})


@pytest.mark.parametrize(
    "point",
    ["<point>10 20</point>", "<point>10, 20</point>", "(10,20)", "<|box_start|>(10,20)<|box_end|>"],
)
def test_reads_thought_and_action(point: str) -> None:
    text = f"Thought: I click.\nThen I look.\nAction: click(point='{point}')"
    assert parsed(text) == Parsed("", "I click.\nThen I look.", (CLICKED,))


def test_reads_several_actions() -> None:
    typed = ("computer", {"action": "type", "content": "it's (10,20)\n"})
    for between in ("\n", "\n\n", "\nAction: "):
        text = rf"Action: click(point='(10,20)'){between}type(content='it\'s (10,20)\n')"
        assert parsed(text) == Parsed("", "", (CLICKED, typed))


def test_an_action_may_be_a_tool_of_its_own() -> None:
    text = "Action: find(where='/a')"
    assert read(text, tool_calls="ui_tars").calls == (("find", {"where": "/a"}),)


def test_a_text_that_looks_like_a_point_stays_text_where_text_may_stand() -> None:
    text = "Action: find(where='(10,20)')"
    assert read(text, tool_calls="ui_tars").calls == (("find", {"where": "(10,20)"}),)


@pytest.mark.parametrize("text", ["Hello. Action: none", "Action: none", "Action: click(", "Hi"])
def test_what_is_no_action_stays_text(text: str) -> None:
    assert parsed(text) == Parsed(text)


def test_reads_only_what_is_wanted() -> None:
    text = "Thought: t\nAction: click(point='(10,20)')"
    assert read(text, reasoning="ui_tars", tool_calls="ui_tars", tools={}) == Parsed(
        "Action: click(point='(10,20)')", "t"
    )
    assert parsed(text, reasoning="none") == Parsed("Thought: t", "", (CLICKED,))
    assert parsed("Thought: t") == Parsed("", "t")
