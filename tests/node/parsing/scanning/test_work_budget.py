"""Tests the cost of outputs that were made to be read again and again: counted, not timed."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.parsing.format import Setup
from node.parsing.output_parser import OutputParser
from node.parsing.part_collector import PartCollector
from node.parsing.registry import layout_for
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import LONGEST_BLOCK
from node.parsing.scanning.stop_strings import StopMatcher
from node.parsing.scanning.work_budget import MOST_REJECTED, REREAD_LENGTH, WorkBudget

TOOLS = (
    ToolSchema(
        "f",
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
        },
    ),
)
CALL = '<tool_call>{{"name": "f", "arguments": {{"n": {}}}}}</tool_call>'
LENGTH = 32_000
MOST_STEPS = 10
"""Function calls that a character may take, all together."""

BUFFERED_STEPS, STREAMED_STEPS = 42, 66
"""Function calls that a piece of a long argument may take, where it is buffered and where it is
streamed; text takes 42."""
LONG_CALLS = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "'),
    ("kimi_k2", '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "'),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n"),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>"),
    ("gemma4", '<|tool_call>call:f{a:<|"|>'),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">'),
    ("lfm2", '<|tool_call_start|>[f(a="'),
]
"""(calls, the begin of a call that is in its argument)."""


def repeated(unit: str, begin: str = "") -> str:
    return begin + unit * (LENGTH // len(unit))


OUTPUTS = [
    ("think", "hermes", "<think>" + "".join(map(CALL.format, range(LENGTH // 50))) + " hmm"),
    ("none", "hermes", repeated("[Calling tool: f(a='")),
    ("none", "hermes", repeated("[TOOL_CALL]{")),
    ("none", "hermes", repeated("<function=f><parameter=a>x</parameter></parameter>")),
    (
        "none",
        "minimax_m2",
        repeated('<invoke name="f"><parameter name="a">x</parameter></parameter>'),
    ),
    ("none", "gemma4", repeated("```tool_code f(a='")),
    ("none", "phi4_functools", repeated("functools[{")),
    ("none", "mistral", repeated("[TOOL_CALLS][{")),
    ("none", "mistral", repeated("[TOOL_CALLS]f{")),
    ("none", "lfm2", repeated("<|tool_call_end|>", '<|tool_call_start|>[f(a="')),
    ("none", "auto", repeated("<tool_call>")),
    ("none", "auto", repeated("[Calling tool: f(a='")),
    (
        "glm",
        "glm",
        "<think>" + repeated("<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value>"),
    ),
]
"""(reasoning, calls, what a model may generate)."""


def reread(form: OutputFormat, pieces: Iterable[str]) -> int:
    """Characters that were read again."""
    source = Source(
        PartCollector(form, StopMatcher(()), ""), {tool.name: {} for tool in form.tools}
    )
    grammar = layout_for(form.reasoning, form.tool_calls)
    source.tokens.pair(*grammar.families(reads_calls=True))
    steps = grammar.read(source, Setup())
    for piece in pieces:
        source.append(piece)
        next(steps, None)
    source.end()
    next(steps, None)
    return source.budget.reread


def calls_of(machine: OutputParser, pieces: Iterable[str]) -> list[int]:
    """Function calls that each piece takes, and the end."""
    counts: list[int] = []
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for piece in [*pieces, ""]:
        count = 0
        sys.setprofile(note)
        try:
            if piece:
                machine.feed(piece)
            else:
                machine.finish()
        finally:
            sys.setprofile(None)
        counts.append(count)
    return counts


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize(("reasoning", "tool_calls", "text"), OUTPUTS)
def test_text_is_read_again_within_a_budget_however_it_is_cut(
    reasoning: str, tool_calls: str, text: str
) -> None:
    form = OutputFormat(reasoning, tool_calls, tools=TOOLS)
    counts = {reread(form, cut(text, size)) for size in (4, 1000, len(text))}
    assert len(counts) == 1
    # Ways of reading one block are tried within it: those are as many as the formats.
    assert counts.pop() <= 3 * REREAD_LENGTH


@pytest.mark.parametrize(("reasoning", "tool_calls", "text"), OUTPUTS)
def test_an_output_takes_steps_as_it_has_characters(
    reasoning: str, tool_calls: str, text: str
) -> None:
    form = OutputFormat(reasoning, tool_calls, tools=TOOLS)
    counts = calls_of(OutputParser(form), cut(text, 4))
    assert sum(counts) <= MOST_STEPS * (len(text) + REREAD_LENGTH)
    assert max(counts) <= 4 * REREAD_LENGTH


@pytest.mark.parametrize(("tool_calls", "begin"), LONG_CALLS)
def test_a_piece_of_a_long_argument_takes_few_steps(tool_calls: str, begin: str) -> None:
    pieces = cut(begin + "word " * 1000, 4)
    for streams, most in ((False, BUFFERED_STEPS), (True, STREAMED_STEPS)):
        form = OutputFormat("none", tool_calls, tools=TOOLS, streams_calls=streams)
        counts = sorted(calls_of(OutputParser(form), pieces)[:-1])
        assert counts[len(counts) // 2] <= most


def test_calls_behind_what_was_read_in_vain_are_still_returned() -> None:
    machine = OutputParser(OutputFormat("none", "hermes", tools=TOOLS))
    vain = '<tool_call>{"name": "g", "arguments": {"a": "' + "x" * (LONGEST_BLOCK - 100)
    parts = [*machine.feed(f'{vain}"}}}}</tool_call>' * 3 + CALL.format(1)), *machine.finish()]
    assert [part.name for part in parts if part.kind is PartKind.TOOL_START] == ["f"]


def test_behind_too_many_blocks_that_were_none_there_are_no_more() -> None:
    def calls_behind(refused: int) -> list[str]:
        machine = OutputParser(OutputFormat("none", "hermes", tools=TOOLS))
        parts = [*machine.feed("<tool_call>x " * refused + CALL.format(1)), *machine.finish()]
        return [part.name for part in parts if part.kind is PartKind.TOOL_START]

    assert calls_behind(MOST_REJECTED - 1) == ["f"]
    assert calls_behind(MOST_REJECTED) == []


def test_the_budget_is_one_of_characters_and_of_blocks() -> None:
    budget = WorkBudget()
    assert budget.try_reread(REREAD_LENGTH)
    assert not budget.try_reread(1)
    assert budget.reread == REREAD_LENGTH
    assert not budget.is_spent
    for _ in range(MOST_REJECTED):
        budget.count_rejected()
    assert budget.is_spent
