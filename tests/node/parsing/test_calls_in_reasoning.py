"""Calls that a model writes before its reasoning has ended."""

from typing import Any

import pytest

from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for
from tests.node.parsing.call_wires import ALL_JSON, ALL_TAGGED, in_json, in_tags
from tests.node.parsing.reading import Parsed, output_format, read
from tests.node.parsing.reading import parsed as parsed_by

PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
FIND = '<tool_call>{"name": "find", "arguments": {"depth": 1}}</tool_call>'
PINGED: tuple[str, Any] = ("ping", {})
FOUND = ("find", {"depth": 1})


def parsed(text: str) -> Parsed:
    return read(text, reasoning="think", tool_calls="hermes", tail="<think>\n")


@pytest.mark.parametrize("end", ["", "\n", "</think>", "\n</think>\n"])
def test_calls_that_end_the_output_are_calls(end: str) -> None:
    assert parsed(f"r {PING}{end}") == Parsed("", "r", (PINGED,))
    assert parsed(f"r {PING}\n{FIND}{end}") == Parsed("", "r", (PINGED, FOUND))


@pytest.mark.parametrize(
    "text", [f"r {PING} s", f"r {PING}{FIND} s", f"r {PING} <tool_call> s", f"r {PING}{FIND[:19]}"]
)
def test_calls_that_the_reasoning_continues_behind_are_reasoning(text: str) -> None:
    assert parsed(f"{text}</think>") == Parsed("", text)
    assert parsed(f"{text}</think>a") == Parsed("a", text)
    assert parsed(f"{text}</think>{PING}") == Parsed("", text, (PINGED,))


def test_calls_that_an_answer_follows_are_reasoning() -> None:
    assert parsed(f"r {PING}</think>a") == Parsed("a", f"r {PING}")
    assert parsed(f"r {FIND}</think>{PING}") == Parsed("", f"r {FIND}", (PINGED,))


def test_undeclared_calls_are_reasoning() -> None:
    text = PING.replace("ping", "open")
    assert parsed(f"r {text}") == Parsed("", f"r {text}")


WIRES = [
    *((name, in_json(wire, "find", '{"depth": 1}')) for name, wire in ALL_JSON),
    *((name, in_tags(wire, "find", {"depth": "1"})) for name, wire in ALL_TAGGED),
]
MARKED = [
    (name, text)
    for name, text in WIRES
    if layout_for("think", name).name.startswith("think+")
    and text.startswith(layout_for("none", name).openers)
]


@pytest.mark.parametrize(("name", "text"), MARKED)
@pytest.mark.parametrize("behind", ["\nDone.", "<think>", "\n<think>\n", " So <think> s"])
def test_a_call_of_reasoning_that_never_ends_counts(name: str, text: str, behind: str) -> None:
    form = output_format(reasoning="think", tool_calls=name, tail="<think>\n")
    output = f"r {text}{behind}"
    whole = parsed_by(form, [output])
    is_opener = behind.strip() == "<think>"
    # The model's own words are streamed as generated, so markup is among them that words follow.
    assert whole.reasoning.startswith("r" if is_opener else f"r {text.strip()}")
    assert whole == Parsed("", whole.reasoning, (FOUND,))
    assert parsed_by(form, output) == whole
    assert parsed_by(form, [f"{output}</think>a"]).calls == ()


def test_all_calls_of_such_reasoning_count_in_their_order() -> None:
    assert parsed(f"r {PING} s {FIND} t").calls == (PINGED, FOUND)
    assert parsed(f"r {PING} s {FIND[:-20]}").calls == (PINGED,)


def test_an_output_that_was_cut_has_not_thought_to_its_end() -> None:
    machine = OutputParser(output_format(reasoning="think", tool_calls="hermes", tail="<think>\n"))
    parts = [*machine.feed(f"r {PING} s"), *machine.finish(is_cut=True)]
    assert {part.kind for part in parts} == {PartKind.REASONING}


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm"])
def test_an_opener_behind_a_call_is_no_content(name: str) -> None:
    def behind(text: str) -> Parsed:
        output = f"r</think>{PING}{text}"
        return read(output, reasoning="think", tool_calls=name, tail="<think>\n")

    assert behind("\n<think>\n") == Parsed("", "r", (PINGED,))
    assert behind("<think>s</think>a") == Parsed("a", "rs", (PINGED,))
    assert behind(f"<think></think>{FIND}") == Parsed("", "r", (PINGED, FOUND))
    assert behind(" s <think>t") == Parsed("s <think>t", "r", (PINGED,))
