"""Outputs of Inkling."""

import pytest

from tests.node.parsing.reading import Parsed, read

MODEL, END = "<|message_model|>", "<|end_message|>"
CALL = '<|content_invoke_tool_json|>{"name": "find", "args": {"where": "x"}}'
CALLS = (("find", {"where": "x"}),)


def inkling(text: str, tail: str = MODEL) -> Parsed:
    return read(text, reasoning="inkling", tool_calls="inkling", tail=tail)


def thinking(text: str) -> str:
    return f"<|content_thinking|>{text}{END}{MODEL}"


def test_blocks_are_distinguished() -> None:
    text = f"{thinking('Hm.')}<|content_text|>I look.{END}{MODEL}find{CALL}{END}"
    assert inkling(text) == inkling(text, tail="") == Parsed("I look.", "Hm.", CALLS)


def test_calls_may_follow_each_other_and_text_may_follow_them() -> None:
    ping = '<|content_invoke_tool_json|>{"args": {}, "name": "ping"}'
    text = f"{CALL}{END}{MODEL}{ping}{END}{MODEL}<|content_text|>Done.{END}"
    assert inkling(text) == Parsed("Done.", "", (*CALLS, ("ping", {})))


def test_the_prompt_may_have_opened_the_block() -> None:
    assert inkling(f"Hm.{END}", MODEL + "<|content_thinking|>") == Parsed("", "Hm.")
    assert inkling(f"So.{END}", MODEL + "<|content_text|>") == Parsed("So.")


def test_an_end_may_be_missing() -> None:
    assert inkling(CALL) == Parsed(calls=CALLS)
    assert inkling("<|content_thinking|>Hm." + CALL) == Parsed("", "Hm.", CALLS)


def test_text_without_a_block_is_the_answer() -> None:
    assert inkling("Hello there.") == inkling("Hello there.", tail="") == Parsed("Hello there.")


@pytest.mark.parametrize(
    "text",
    [
        '<|content_invoke_tool_json|>{"name": "unknown", "args": {}}',
        '<|content_invoke_tool_json|>{"name": "find", "args": [1]}',
        '<|content_invoke_tool_json|>{"name": "find", "args": {"wh',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert inkling(text) == Parsed(text)
