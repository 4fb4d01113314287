"""Calls that a model writes before its reasoning has ended."""

from typing import Any

import pytest

from tests.node.parsing.reading import Said, read

PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
FIND = '<tool_call>{"name": "find", "arguments": {"depth": 1}}</tool_call>'
PINGED: tuple[str, Any] = ("ping", {})
FOUND = ("find", {"depth": 1})


def said(text: str) -> Said:
    return read(text, reasoning="think", tool_calls="hermes", tail="<think>\n")


@pytest.mark.parametrize("end", ["", "\n", "</think>", "\n</think>\n"])
def test_calls_that_end_the_output_are_calls(end: str) -> None:
    assert said(f"r {PING}{end}") == Said("", "r", (PINGED,))
    assert said(f"r {PING}\n{FIND}{end}") == Said("", "r", (PINGED, FOUND))


@pytest.mark.parametrize(
    "text", [f"r {PING} s", f"r {PING}{FIND} s", f"r {PING} <tool_call> s", f"r {PING}{FIND[:19]}"]
)
def test_calls_that_the_reasoning_goes_on_behind_are_reasoning(text: str) -> None:
    assert said(text) == Said("", text)
    assert said(f"{text}</think>a") == Said("a", text)
    assert said(f"{text}</think>{PING}") == Said("", text, (PINGED,))


def test_calls_that_an_answer_follows_are_reasoning() -> None:
    assert said(f"r {PING}</think>a") == Said("a", f"r {PING}")
    assert said(f"r {FIND}</think>{PING}") == Said("", f"r {FIND}", (PINGED,))


def test_undeclared_calls_are_reasoning() -> None:
    text = PING.replace("ping", "open")
    assert said(f"r {text}") == Said("", f"r {text}")
