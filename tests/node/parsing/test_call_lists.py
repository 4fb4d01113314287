"""Calls as a list in tags, of Hunyuan A13B and Apriel."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

CALLS: Calls = (("find", {"names": ["</tool_calls>"], "filter": {"n": {}}}), ("ping", {}))
LIST = (
    '[{"name": "find", "arguments": {"names": ["</tool_calls>"], "filter": {"n": {}}}}, '
    '{"name": "ping", "arguments": {}}]'
)


@pytest.mark.parametrize("form", ["hunyuan_a13b", "apriel"])
def test_calls_in_a_list_are_read(form: str) -> None:
    text = f"I look. <tool_calls>{LIST}</tool_calls>"
    assert read(text, tool_calls=form) == Parsed("I look.", "", CALLS)
    assert read(f"<tool_calls>\n{LIST}", tool_calls=form) == Parsed("", "", CALLS)


@pytest.mark.parametrize("form", ["hunyuan_a13b", "apriel"])
@pytest.mark.parametrize("body", ['[{"name": "unknown", "arguments": {}}]', "no", '[{"name": "fi'])
def test_what_is_no_call_stays_text(form: str, body: str) -> None:
    assert read("<tool_calls>" + body, tool_calls=form) == Parsed("<tool_calls>" + body)


def test_the_tags_of_an_answer_are_no_text() -> None:
    def hunyuan(text: str) -> Parsed:
        return read(text, reasoning="hunyuan_a13b", tool_calls="hunyuan_a13b")

    thought = "<think>\nHm.\n</think>\n"
    assert hunyuan(f"{thought}<answer>\nSo.\n</answer>") == Parsed("So.", "Hm.")
    assert hunyuan(f"{thought}<answer>\nSo.") == Parsed("So.", "Hm.")
    assert hunyuan(f"{thought}<answer>\n<tool_calls>{LIST}</tool_calls>\n</answer>") == Parsed(
        "", "Hm.", CALLS
    )
    assert read(f"<tool_calls>{LIST}</tool_calls>\n</answer>", tool_calls="hunyuan_a13b") == Parsed(
        "", "", CALLS
    )


def test_an_answer_stands_behind_its_heading() -> None:
    tail = "<|begin_assistant|>\nHere are my reasoning steps:\n"
    text = "Hm.\n[BEGIN FINAL RESPONSE]\nSo.\n[END FINAL RESPONSE]"
    assert read(text, reasoning="apriel", tail=tail) == Parsed("So.", "Hm.")
    text = f"Hm.\n[BEGIN FINAL RESPONSE]\n<tool_calls>{LIST}</tool_calls>"
    assert read(text, reasoning="apriel", tool_calls="apriel", tail=tail) == Parsed(
        "", "Hm.", CALLS
    )
