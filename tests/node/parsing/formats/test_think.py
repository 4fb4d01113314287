from typing import Any

import pytest

from node.ipc.messages import PartKind
from node.parsing.format import ReasoningFormat
from node.parsing.formats.think import ALWAYS_THINK, MIXED_THINK, THINK
from tests.node.parsing.reading import Parsed, collect, output_format, read

CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
PINGED: tuple[tuple[str, Any], ...] = (("ping", {}),)


@pytest.mark.parametrize(
    ("tail", "text", "expected"),
    [
        ("", "<think>\na\n\nb\n</think>\n\nc\n\nd", Parsed("c\n\nd", "a\n\nb")),
        ("<|assistant|>\n<think>\n", "a\n</think>\n\nc", Parsed("c", "a")),
        ("<|assistant|><think></think>", "c", Parsed("c")),
        ("<|assistant|><think>\n\n</think>\n\n", "c </think> d", Parsed("c </think> d")),
        ("<|assistant|></think>", "c", Parsed("c")),
        ("<think>", "</think>c", Parsed("c")),
        ("<think>", "", Parsed()),
        ("", "", Parsed()),
        ("", "\n<think>a</think>c", Parsed("c", "a")),
        ("<think>an old one</think>b<|user|>c<|assistant|><think>", "a</think>c", Parsed("c", "a")),
    ],
)
def test_the_prompt_determines_where_reasoning_begins(
    tail: str, text: str, expected: Parsed
) -> None:
    assert read(text, reasoning="think", tail=tail) == expected


HEAD = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "tail",
    [
        f"{HEAD}The tag <think> is",
        f"{HEAD}Tags:\n<think> is",
        f"{HEAD}<think>\n\n</think>\n\nThe tag <think> is",
        f"{HEAD}</think>The tag <think>",
        "<|assistant|>The tag <think>",
        "[/INST]The tag <think> is",
        "The assistant: <think> is",
    ],
)
def test_an_answer_that_the_prompt_begins_may_speak_of_reasoning(tail: str) -> None:
    assert read("used <think>, </think>.", reasoning="think", tail=tail) == Parsed(
        "used <think>, </think>."
    )


@pytest.mark.parametrize(
    "head", ["", HEAD, "<|im_end|>\n<|im_start|>assistant", "<|assistant|>", "]~b]ai\n", "x: "]
)
def test_an_opener_where_the_answer_begins_counts_whatever_stands_before(head: str) -> None:
    assert read("a</think>b", reasoning="think", tail=f"{head}<think>\n") == Parsed("b", "a")


@pytest.mark.parametrize("head", [HEAD, "assistant: ", "\n Assistant:\n", "model", ""])
def test_reasoning_that_the_prompt_begins_continues(head: str) -> None:
    form = output_format(reasoning="think", tail=f"{head}<think>\nThe tag <think>")
    parts = collect(form, [" is mine</think>b"])
    assert parts.text(PartKind.REASONING) == " is mine"
    assert parts.text(PartKind.CONTENT) == "b"


def test_after_reasoning_that_the_prompt_closed_an_opener_is_text() -> None:
    tail = f"{HEAD}<think>\n\n</think>\n\n"
    assert read("<think> is a tag.", reasoning="think", tail=tail) == Parsed("<think> is a tag.")


@pytest.mark.parametrize("text", ["a", "a <thi", "a </think", "a\n</th"])
def test_reasoning_without_an_end_is_reasoning(text: str) -> None:
    assert read(text, reasoning="think", tail="<think>") == Parsed("", text)
    assert read(f"<think>{text}", reasoning="think") == Parsed("", text)
    assert read(text, reasoning="think") == Parsed(text)


@pytest.mark.parametrize(
    "answer",
    [
        "The tag <think> begins it, </think> ends it.",
        "It is `<think>x</think>`.",
        "a </think>",
    ],
)
def test_markers_in_the_answer_are_text(answer: str) -> None:
    assert read(f"<think>a</think>{answer}", reasoning="think") == Parsed(answer, "a")
    assert read(answer, reasoning="think") == Parsed(answer)


@pytest.mark.parametrize("again", ["</think>", "\n</think>\n\n</think>", "\n\n<think></think>"])
def test_markers_between_reasoning_and_answer_are_no_text(again: str) -> None:
    assert read(f"a</think>{again}\n\nc", reasoning="think", tail="<think>") == Parsed("c", "a")


def test_reasoning_may_continue_before_the_answer() -> None:
    found = read("<think>a\n</think>\n<think>b\n</think>c", reasoning="think")
    assert found == Parsed("c", "a\nb")


@pytest.mark.parametrize(
    ("tail", "text", "expected"),
    [
        ("", "a</think>c", Parsed("c", "a")),
        ("", "<think>a</think>c", Parsed("c", "a")),
        ("", " \n<think>a", Parsed("", "a")),
        ("", "a", Parsed("", "a")),
        ("<think>", "a</think>c", Parsed("c", "a")),
        ("<think></think>", "c", Parsed("c")),
    ],
)
def test_some_models_begin_within_reasoning_by_themselves(
    tail: str, text: str, expected: Parsed
) -> None:
    assert read(text, reasoning="always_think", tail=tail) == expected


def test_mixed_reasoning_may_begin_again_in_either_spelling() -> None:
    text = "<thinking>a</thinking>b\n<think>c</think>\nd"
    found = read(text, reasoning="mixed_think")
    assert (found.content.split(), found.reasoning.split()) == (["b", "d"], ["ac"])


@pytest.mark.parametrize("end", ["", "</think>", "\n</think>\n"])
def test_a_call_ends_reasoning_that_nothing_else_ends(end: str) -> None:
    text = f"I look it up.\n{CALL}{end}"
    found = read(text, reasoning="think", tool_calls="hermes", tail="<think>")
    assert found == Parsed("", "I look it up.", PINGED)


def test_a_call_that_is_thought_about_is_reasoning() -> None:
    text = f"I could write {CALL} here.</think>No."
    found = read(text, reasoning="think", tool_calls="hermes", tail="<think>")
    assert found == Parsed("No.", f"I could write {CALL} here.")


def test_a_call_behind_reasoning_is_one() -> None:
    text = f"<think>a</think>\n\nb\n{CALL}"
    assert read(text, reasoning="think", tool_calls="hermes") == Parsed("b", "a", PINGED)


@pytest.mark.parametrize("body", ['{"name": "f"}', "<function=f></function>"])
@pytest.mark.parametrize("line", ["", "\n"])
def test_a_call_that_is_not_to_be_read_ends_reasoning_too(body: str, line: str) -> None:
    call = f"<tool_call>{line}{body}\n</tool_call>"
    found = read(f"I look.\n{call}\n</think>", reasoning="think", tools={}, tail="<think>")
    assert found == Parsed(call, "I look.")
    twice = f"{call}\n{call}"
    assert read(f"I look.\n{twice}", reasoning="think", tools={}, tail="<think>") == Parsed(
        twice, "I look."
    )
    thought = f"What does {call} mean?"
    for talk in (thought, f"{call}{thought}", f"{thought}{call[:-3]}"):
        found = read(f"{talk}</think>ok", reasoning="think", tools={}, tail="<think>")
        assert found == Parsed("ok", talk)
    talk = "The tag <tool_call> is it."
    assert read(talk, reasoning="think", tools={}, tail="<think>") == Parsed("", talk)


def test_without_a_format_reasoning_is_content() -> None:
    text = "<think>a</think>b"
    assert read(text) == Parsed(text)


@pytest.mark.parametrize("form", [THINK, ALWAYS_THINK, MIXED_THINK])
def test_a_prompt_that_ends_with_the_opener_begins_within(form: ReasoningFormat) -> None:
    assert form.opener == "<think>"
    assert form.begins_within(f"a: {form.opener}\n")
    assert not form.begins_within("a: <think></think>")
    assert form.begins_within("a: ") == form.implicit
