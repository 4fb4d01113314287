"""Reasoning, white space and stop strings in outputs. Each of these was a fault of another
server."""

import pytest

from node.dialects.base import Collected
from node.ipc.messages import Part, PartKind
from node.parsing.output_parser import OutputParser
from tests.node.parsing.reading import Parsed, output_format, read
from tests.reports.samples import ARGUMENTS, CALLS

OPEN = "<think>\n"
"""The tail of a prompt that has begun the reasoning."""
HARMONY_TAIL = "<|start|>assistant"
SPELLINGS = {
    "think": "<think>\nHm. So.\n</think>\n\n{answer}",
    "mistral": "[THINK]Hm. So.[/THINK]{answer}",
    "gemma4": "<|channel>thought\nHm. So.<channel|>{answer}",
    "seed": "<seed:think>Hm. So.</seed:think>{answer}",
    "command_r": "<|START_THINKING|>Hm. So.<|END_THINKING|><|START_TEXT|>{answer}<|END_TEXT|>",
    "harmony": "<|channel|>analysis<|message|>Hm. So.<|end|><|start|>assistant<|channel|>final"
    "<|message|>{answer}<|return|>",
}
"""Reasoning and an answer, by format."""


def tail_of(form: str) -> str:
    return HARMONY_TAIL if form == "harmony" else ""


def form_of_calls(reasoning: str) -> str:
    return reasoning if reasoning in CALLS else "hermes"


def parts_of(machine: OutputParser, text: str) -> list[Part]:
    """The parts of the text that arrives character by character."""
    parts: list[Part] = []
    for character in text:
        parts += machine.feed(character)
        if machine.ended:
            break
    return [*parts, *machine.finish()]


def text_of(parts: list[Part], kind: PartKind) -> str:
    collected = Collected()
    collected.add(parts)
    return collected.text(kind)


# --- markers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "A <think> tag begins it.",
        "Write <think>x</think> around it.",
        "`</think>` ends it, and so on.",
        "First.\n\n<think>\nnot a thought\n</think>\nLast.",
    ],
)
def test_an_answer_may_contain_the_words_that_mark_reasoning(answer: str) -> None:
    thought = f"<think>Hm.</think>{answer}"
    assert read(thought, reasoning="think") == Parsed(answer, "Hm.")
    assert read(f"Hm.</think>{answer}", reasoning="think", tail=OPEN) == Parsed(answer, "Hm.")
    assert read(f"So. {answer}", reasoning="think") == Parsed(f"So. {answer}")


def test_reasoning_occurs_again_only_in_formats_that_allow_it() -> None:
    text = "<think>a</think>b<think>c</think>d"
    assert read(text, reasoning="mixed_think") == Parsed("bd", "ac")
    assert read(text, reasoning="think") == Parsed("b<think>c</think>d", "a")


def test_ends_of_reasoning_that_are_repeated_are_no_text() -> None:
    text = "<think>Hm.</think>\n</think>\n\nSo."
    assert read(text, reasoning="think") == Parsed("So.", "Hm.")


def test_reasoning_that_never_ends_is_reasoning_in_a_stream_and_whole() -> None:
    assert read("Hm. So", reasoning="think", tail=OPEN) == Parsed("", "Hm. So")
    assert read("<think>Hm. So", reasoning="think") == Parsed("", "Hm. So")


@pytest.mark.parametrize("form", SPELLINGS)
def test_nothing_of_a_marker_is_returned_wherever_it_is_cut(form: str) -> None:
    text = SPELLINGS[form].format(answer="An <answer>.")
    expected = Parsed("An <answer>.", "Hm. So.")
    assert read(text, reasoning=form, tool_calls=form_of_calls(form), tail=tail_of(form)) == (
        expected
    )


def test_a_channel_without_a_thought_leaves_nothing_behind() -> None:
    for text in ("<|channel>thought\n<channel|>So.", "<|channel>thought<channel|>So."):
        assert read(text, reasoning="gemma4", tool_calls="gemma4") == Parsed("So.")


def test_what_only_begins_like_a_marker_is_text() -> None:
    for text in ("a <|chan", "a <|channel", "a <", "a <|tool_ca"):
        assert read(text, reasoning="gemma4", tool_calls="gemma4") == Parsed(text)
    for text in ("a <th", "a <tool_cal", "a </"):
        assert read(text, reasoning="think", tool_calls="hermes") == Parsed(text)


def test_a_call_ends_reasoning_that_was_not_closed() -> None:
    text = f"I look it up.\n{CALLS['hermes']}"
    called = (("find", ARGUMENTS),)
    expected = Parsed("", "I look it up.", called)
    assert read(text, reasoning="think", tool_calls="hermes", tail=OPEN) == expected


# --- white space -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["none", "think", "mistral", "gemma4"])
def test_white_space_between_paragraphs_is_kept_however_it_arrives(form: str) -> None:
    answer = "One.\n\n    Two.\n\n\n\n\tThree. \n"
    machine = OutputParser(output_format(reasoning=form, tool_calls="hermes"))
    assert text_of(parts_of(machine, answer), PartKind.CONTENT) == answer
    machine = OutputParser(output_format(reasoning=form, tool_calls="hermes"))
    alone = [part for piece in ("One.", "\n\n", "Two.") for part in machine.feed(piece)]
    assert "".join(part.text for part in alone) == "One.\n\nTwo."


def test_white_space_within_reasoning_is_kept() -> None:
    machine = OutputParser(output_format(reasoning="think"))
    parts = parts_of(machine, "<think>\nOne.\n\n  Two.\n</think>\n\nSo.\n\nAnd so.")
    assert text_of(parts, PartKind.REASONING) == "One.\n\n  Two."
    assert text_of(parts, PartKind.CONTENT) == "So.\n\nAnd so."


# --- stop strings ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", SPELLINGS)
def test_a_stop_string_ends_the_answer_and_no_reasoning(form: str) -> None:
    output = output_format(reasoning=form, tool_calls=form_of_calls(form), tail=tail_of(form))
    machine = OutputParser(output, (".",))
    parts = parts_of(machine, SPELLINGS[form].format(answer="It rains. Take a coat."))
    assert text_of(parts, PartKind.REASONING) == "Hm. So."
    assert text_of(parts, PartKind.CONTENT) == "It rains"
    assert machine.stop == "."


def test_a_stop_string_within_arguments_ends_nothing() -> None:
    machine = OutputParser(output_format(tool_calls="hermes"), ("a b",))
    kinds = [part.kind for part in parts_of(machine, CALLS["hermes"])]
    assert kinds == [PartKind.TOOL_START, PartKind.TOOL_ARGS]
    assert machine.stop is None
