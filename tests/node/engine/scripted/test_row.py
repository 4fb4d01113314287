"""Tests a request's settings of the scripted engine's answers: several, shorter reasoning,
logprobs."""

from typing import Any

import pytest

from node.engine.scripted.engine import ScriptedEngine
from node.engine.scripted.script import Script
from node.ipc.generate import (
    Constraint,
    ConstraintKind,
    GenerateRequest,
    OutputFormat,
    ToolSchema,
)
from node.ipc.messages import (
    Accepted,
    Alternative,
    Delta,
    Loaded,
    Part,
    PartKind,
    Refused,
    TokenLogprob,
)
from node.protocol.messages import FinishReason

THINK = OutputFormat("think", "none")
TOOLS = (ToolSchema("f"),)


def make(script: Script, max_rows: int = 4) -> ScriptedEngine:
    info = Loaded(weight_bytes=1, context_tokens=100, max_rows=max_rows, vocab_size=256)
    return ScriptedEngine(info, script)


def request(uid: str = "r", **options: Any) -> GenerateRequest:
    return GenerateRequest(uid, (1, 2, 3), **{"max_tokens": None, **options})


def run(engine: ScriptedEngine, request: GenerateRequest) -> list[Delta]:
    """All deltas of one request."""
    assert isinstance(engine.submit(request), Accepted)
    deltas: list[Delta] = []
    while not deltas or not deltas[-1].is_last:
        deltas += engine.step()
    return deltas


def text_of(deltas: list[Delta], kind: PartKind = PartKind.CONTENT, choice: int = 0) -> str:
    return "".join(
        part.text
        for delta in deltas
        for part in delta.parts
        if delta.choice == choice and part.kind is kind
    )


# --- choices ---------------------------------------------------------------------------------


def test_choices_take_the_scripts_outputs_in_turn_and_share_their_usage() -> None:
    deltas = run(make(Script(outputs=("one", "two and three"))), request(choices=2))
    assert (text_of(deltas), text_of(deltas, choice=1)) == ("one", "two and three")
    ends = [delta for delta in deltas if delta.finish is not None]
    assert [(end.choice, end.open_choices) for end in ends] == [(0, 1), (1, 0)]
    assert ends[0].usage is None
    assert ends[1].usage is not None
    assert (ends[1].usage.prompt_tokens, ends[1].usage.completion_tokens) == (3, 5)


def test_choices_that_no_script_sets_differ() -> None:
    deltas = run(make(Script()), request(choices=3, max_tokens=5))
    assert len({text_of(deltas, choice=choice) for choice in range(3)}) == 3


def test_calls_of_choices_have_ids_of_their_own() -> None:
    output = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    sent = request(choices=2, output=OutputFormat("none", "hermes", tools=TOOLS))
    deltas = run(make(Script(outputs=(output,))), sent)
    ids = [part.call_id for delta in deltas for part in delta.parts if part.call_id]
    assert len(set(ids)) == 2


def test_choices_wait_for_places_for_all_of_them() -> None:
    engine = make(Script(tokens=3))
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    engine.submit(request("n", choices=3))
    assert engine.stats().waiting_rows == 3
    assert {delta.uid for delta in engine.step()} == {"a", "b"}
    engine.step()
    assert [delta.choice for delta in engine.step()] == [0, 1, 2]


def test_more_choices_than_rows_are_refused() -> None:
    refused = make(Script(), max_rows=2).submit(request(choices=3))
    assert isinstance(refused, Refused) and refused.param == "n"


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("end", ["cancel", "reset"])
def test_a_cancel_and_a_reset_end_all_choices(steps: int, end: str) -> None:
    engine = make(Script(tokens=9))
    engine.submit(request("n", choices=3))
    for _ in range(steps):
        engine.step()
    deltas = engine.cancel("n") if end == "cancel" else engine.reset("It broke.")
    assert [delta.open_choices for delta in deltas] == [2, 1, 0]
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 3 * steps
    assert engine.wait_s() is None


# --- thinking --------------------------------------------------------------------------------

THOUGHTS = "<think>one two three four</think>five"


def test_reasoning_without_a_budget_is_as_long_as_the_script_has_it() -> None:
    deltas = run(make(Script(outputs=(THOUGHTS,))), request(output=THINK))
    assert text_of(deltas, PartKind.REASONING) == "one two three four"
    assert text_of(deltas) == "five"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.reasoning_overflow_tokens == 0


@pytest.mark.parametrize(("budget", "thoughts"), [(0, "o"), (1, "one t"), (2, "one two t")])
def test_reasoning_ends_where_its_budget_does_and_the_script_continues(
    budget: int, thoughts: str
) -> None:
    sent = request(output=THINK, thinking_tokens=budget)
    deltas = run(make(Script(outputs=(THOUGHTS,))), sent)
    assert text_of(deltas, PartKind.REASONING) == thoughts
    assert text_of(deltas).endswith("five")
    usage = deltas[-1].usage
    assert usage is not None
    # "</th" and "ink>".
    assert (usage.reasoning_tokens, usage.reasoning_overflow_tokens) == (budget + 2, 2)
    assert deltas[-1].finish is FinishReason.STOP


def test_reasoning_that_the_prompt_has_begun_ends_at_once_without_a_budget_left() -> None:
    output = OutputFormat("think", "none", prompt_tail="<think>\n")
    sent = request(output=output, thinking_tokens=0)
    deltas = run(make(Script(outputs=("five",))), sent)
    assert (text_of(deltas, PartKind.REASONING), text_of(deltas)) == ("", "five")


def test_a_large_budget_changes_nothing() -> None:
    deltas = run(make(Script(outputs=(THOUGHTS,))), request(output=THINK, thinking_tokens=50))
    assert text_of(deltas, PartKind.REASONING) == "one two three four"


def test_max_tokens_applies_while_the_end_of_the_reasoning_is_forced() -> None:
    sent = request(output=THINK, thinking_tokens=1, max_tokens=4)
    deltas = run(make(Script(outputs=(THOUGHTS,))), sent)
    assert deltas[-1].finish is FinishReason.LENGTH
    assert deltas[-1].token_count == 4


THOUGHT_CALL = '<think>Hm <tool_call>{"name": "f", "arguments": {}}</tool_call> so it is'


@pytest.mark.parametrize(("max_tokens", "calls"), [(None, 1), (len(THOUGHT_CALL) // 4 - 1, 0)])
def test_truncated_reasoning_makes_no_call(max_tokens: int | None, calls: int) -> None:
    output = OutputFormat("think", "hermes", tools=TOOLS)
    deltas = run(
        make(Script(outputs=(THOUGHT_CALL,))), request(output=output, max_tokens=max_tokens)
    )
    kinds = [part.kind for delta in deltas for part in delta.parts]
    assert kinds.count(PartKind.TOOL_START) == calls


# --- logprobs --------------------------------------------------------------------------------


def test_what_the_script_outputs_is_certain() -> None:
    deltas = run(make(Script(outputs=("one two",))), request(logprobs=3))
    token = Alternative("one ", b"one ", 0.0)
    assert deltas[0].parts == (
        Part(PartKind.CONTENT, "one ", logprobs=(TokenLogprob(token, (token,)),)),
    )
    deltas = run(make(Script(outputs=("one two",))), request(logprobs=0))
    assert deltas[0].parts[0].logprobs == (TokenLogprob(token),)


def test_no_logprobs_are_returned_of_reasoning() -> None:
    deltas = run(make(Script(outputs=(THOUGHTS,))), request(output=THINK, logprobs=1))
    found = [(part.kind, each) for d in deltas for part in d.parts for each in part.logprobs]
    assert {kind for kind, _ in found} == {PartKind.CONTENT}
    assert "".join(each.token.text for _, each in found) == "e"


# --- what a script cannot be constrained to ---------------------------------------------------


def test_what_would_force_an_answer_is_refused_by_its_field() -> None:
    engine = make(Script())
    constraint = Constraint(ConstraintKind.JSON_OBJECT, "response_format")
    refused = engine.submit(request(constraint=constraint))
    assert isinstance(refused, Refused) and refused.param == "response_format"
    forced = OutputFormat("none", "hermes", tools=TOOLS, must_call=True)
    refused = engine.submit(request(output=forced))
    assert isinstance(refused, Refused) and refused.param == "tool_choice"


def test_strict_tools_are_no_reason_to_refuse() -> None:
    output = OutputFormat("none", "hermes", tools=(ToolSchema("f", strict=True),))
    assert isinstance(make(Script()).submit(request(output=output)), Accepted)


def test_a_call_that_turns_out_to_be_none_ends_the_sequence_with_the_reason() -> None:
    output = OutputFormat("none", "hermes", tools=TOOLS, streams_calls=True)
    broken = '<tool_call>{"name": "f", "arguments": {"a": "b", so}}</tool_call>'
    last = run(make(Script(outputs=(broken,))), request(output=output))[-1]
    reason = "The model broke off its call of f: it left the format of its calls."
    assert (last.finish, last.error) == (FinishReason.STOP, reason)
    cut = run(make(Script(outputs=(broken.partition(", so")[0],))), request(output=output))[-1]
    assert cut.error == "The model broke off its call of f: it ended its output there."
