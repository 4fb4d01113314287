"""Budgets of reasoning in every format, in one batch of the scripted engine."""

import pytest

from node.dialects.base import Collected
from node.engine.scripted.engine import ScriptedEngine
from node.engine.scripted.row import PIECE_LENGTH
from node.engine.scripted.script import Script
from node.ipc.generate import GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import Accepted, Delta, Loaded, Part, PartKind, RowUsage
from node.parsing.registry import layout_for, reasoning_names
from node.protocol.messages import FinishReason
from tests.node.parsing.reasoning_wires import ANSWER, WIRES, WITHOUT, prompts

BUDGETS = (0, 1, 17, None)
WORDS = " ".join(f"thought {number}," for number in range(12))
THOUGHT = f"{WORDS} done."
"""Longer than 17 tokens."""
PING = ToolSchema("ping", {"type": "object", "properties": {}})

CASES = pytest.mark.parametrize(
    ("name", "tail", "opener"),
    [(name, *prompt) for name, wire in sorted(WIRES.items()) for prompt in prompts(wire)],
)


def closing_of(name: str) -> str:
    return layout_for(name, WIRES[name].tool_calls or name).closing


def closing_tokens(name: str) -> int:
    return -(-len(closing_of(name)) // PIECE_LENGTH)


def batch(
    name: str, tail: str, text: str, budgets: tuple[int | None, ...], *, max_rows: int = 4
) -> list[list[Delta]]:
    """The deltas of sequences with these budgets that all generate the text, at once."""
    info = Loaded(weight_bytes=1, context_tokens=4096, max_rows=max_rows, vocab_size=256)
    engine = ScriptedEngine(info, Script(outputs=(text,)), clock=lambda: 100.0)
    output = OutputFormat(name, WIRES[name].tool_calls or name, tail, (PING,))
    for at, budget in enumerate(budgets):
        request = GenerateRequest(f"r{at}", (1, 2, 3), None, output=output, thinking_tokens=budget)
        assert isinstance(engine.submit(request), Accepted)
    rows: dict[str, list[Delta]] = {f"r{at}": [] for at in range(len(budgets))}
    while any(not deltas or deltas[-1].finish is None for deltas in rows.values()):
        for delta in engine.step():
            rows[delta.uid].append(delta)
    return list(rows.values())


def parts_of(deltas: list[Delta]) -> list[Part]:
    return [part for delta in deltas for part in delta.parts]


def text_of(parts: list[Part], kind: PartKind) -> str:
    return "".join(part.text for part in parts if part.kind is kind)


def usage_of(deltas: list[Delta]) -> RowUsage:
    usage = deltas[-1].usage
    assert usage is not None
    return usage


def test_every_format_of_reasoning_is_here() -> None:
    assert {*WIRES, *WITHOUT} == set(reasoning_names())


@CASES
def test_reasoning_ends_within_its_budget_and_content_follows(
    name: str, tail: str, opener: str
) -> None:
    wire = WIRES[name]
    text = f"{opener}{THOUGHT}{closing_of(name)}{wire.answer}"
    rows = batch(name, tail, text, BUDGETS)
    free = usage_of(rows[-1])
    assert free.reasoning_overflow_tokens == 0
    assert text_of(parts_of(rows[-1]), PartKind.REASONING) == THOUGHT
    assert text_of(parts_of(rows[-1]), PartKind.CONTENT) == wire.content
    for deltas, budget in zip(rows[:-1], BUDGETS[:-1], strict=True):
        usage, parts = usage_of(deltas), parts_of(deltas)
        assert budget is not None
        assert deltas[-1].finish is FinishReason.STOP
        assert budget < usage.reasoning_tokens <= budget + closing_tokens(name)
        assert usage.reasoning_overflow_tokens == usage.reasoning_tokens - budget
        assert usage.completion_tokens == free.completion_tokens + closing_tokens(name)
        reasoning = text_of(parts, PartKind.REASONING)
        assert THOUGHT.startswith(reasoning)
        assert len(reasoning) <= (budget + 1) * PIECE_LENGTH
        assert text_of(parts, PartKind.CONTENT).endswith(ANSWER)


@CASES
def test_what_is_streamed_is_what_is_collected(name: str, tail: str, opener: str) -> None:
    text = f"{opener}{THOUGHT}{closing_of(name)}{WIRES[name].answer}"
    for deltas, budget in zip(batch(name, tail, text, BUDGETS), BUDGETS, strict=True):
        collected = Collected()
        for delta in deltas:
            collected.add(delta.parts)
        parts = parts_of(deltas)
        for kind in (PartKind.REASONING, PartKind.CONTENT):
            assert collected.text(kind) == text_of(parts, kind)
        kinds = [part.kind for part in parts]
        assert kinds == sorted(kinds, key=[PartKind.REASONING, PartKind.CONTENT].index)
        (alone,) = batch(name, tail, text, (budget,))
        assert parts_of(alone) == parts
        assert [delta.token_count for delta in alone] == [delta.token_count for delta in deltas]


@CASES
def test_a_budget_that_is_not_used_up_changes_nothing(name: str, tail: str, opener: str) -> None:
    text = f"{opener}{THOUGHT}{closing_of(name)}{WIRES[name].answer}"
    free, budgeted = batch(name, tail, text, (None, 1000))
    assert parts_of(free) == parts_of(budgeted)
    assert usage_of(free) == usage_of(budgeted)


@CASES
def test_a_call_that_the_model_thinks_about_does_not_outlive_the_budget(
    name: str, tail: str, opener: str
) -> None:
    if WIRES[name].tool_calls != "hermes":
        return
    text = f'{opener}Maybe <tool_call>\n{{"name": "ping", "arguments": {{"a": "{WORDS}'
    (deltas,) = batch(name, tail, text, (10,))
    usage = usage_of(deltas)
    assert usage.reasoning_tokens <= 10 + closing_tokens(name)
    assert text_of(parts_of(deltas), PartKind.CONTENT).endswith(WORDS[-20:])
