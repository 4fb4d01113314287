"""Outputs of Cohere's models."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

THINKING, THINKING_END = "<|START_THINKING|>", "<|END_THINKING|>"
LIST = (
    '[\n    {"tool_call_id": "0", "tool_name": "find", "parameters": {"where": "x"}},\n'
    '    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]'
)
CALLS: Calls = (("find", {"where": "x"}), ("ping", {}))


def command(text: str, tail: str = "") -> Parsed:
    return read(text, reasoning="command_r", tool_calls="command_r", tail=tail)


@pytest.mark.parametrize("answer", ["RESPONSE", "TEXT"])
def test_reasoning_and_answer_are_distinguished(answer: str) -> None:
    text = f"Hm.{THINKING_END}\n<|START_{answer}|>So.<|END_{answer}|>"
    assert command(THINKING + text) == Parsed("So.", "Hm.")
    assert command(text, tail="<|CHATBOT_TOKEN|>" + THINKING) == Parsed("So.", "Hm.")
    assert command("So.", tail="<|CHATBOT_TOKEN|><|START_RESPONSE|>") == Parsed("So.")


def test_calls_are_read_one_by_one() -> None:
    action = f"<|START_ACTION|>{LIST}<|END_ACTION|>"
    assert command(f"{THINKING}Hm.{THINKING_END}{action}") == Parsed("", "Hm.", CALLS)
    assert command(f"{THINKING}Hm.{action}") == Parsed("", "Hm.", CALLS)
    assert command(f"<|START_ACTION|>\n{LIST}") == Parsed(calls=CALLS)


def test_marks_of_citations_are_no_text() -> None:
    text = (
        "<|START_RESPONSE|>It is <co>so</co: 0:[1,2],1:[0]> and <co>not</co: 0> so.<|END_RESPONSE|>"
    )
    assert command(text) == Parsed("It is so and not so.")


@pytest.mark.parametrize("text", ["a <co>b", "a <co>b</co>", "a </co: 0:[1]> b", "<co>x</co: y>"])
def test_what_cites_nothing_is_text(text: str) -> None:
    assert command(text) == Parsed(text)


@pytest.mark.parametrize(
    "body", ['[{"tool_name": "unknown", "parameters": {}}]', "nothing", '[{"tool_name": "fi']
)
def test_what_is_no_call_stays_text(body: str) -> None:
    for text in ("<|START_ACTION|>" + body, f"<|START_ACTION|>{body}<|END_ACTION|>"):
        assert command(text) == Parsed(text)


def test_reasoning_that_is_not_split_keeps_its_markers() -> None:
    text = f"{THINKING}Hm.{THINKING_END}<|START_TEXT|>So.<|END_TEXT|>"
    assert read(text, tool_calls="command_r") == Parsed(f"{THINKING}Hm.{THINKING_END}So.")


def test_actions_of_older_models_stand_in_a_fence() -> None:
    expected = Parsed("Plan: look.", "", CALLS)
    for end in ("\n```", "```", ""):
        text = f"Plan: look.\nAction:\n```json\n{LIST}{end}"
        assert read(text, tool_calls="command_r_plus") == expected


@pytest.mark.parametrize(
    "text", ["Action: run away", "Action:\n```json\n[]x", 'Action:\n```json\n[{"tool_name": "fi']
)
def test_the_word_action_alone_is_text(text: str) -> None:
    parsed = read(text, tool_calls="command_r_plus")
    assert not parsed.calls and parsed.content.startswith(("Action:", "x"))
