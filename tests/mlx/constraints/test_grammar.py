"""Answers that are constrained by a grammar, on tiny models."""

import json
import re
import threading
from pathlib import Path

import pytest

from node.engine.constraints.grammar import GrammarFailed, Matcher
from node.ipc.generate import (
    Constraint,
    ConstraintKind,
    GenerateRequest,
    OutputFormat,
    SamplingParams,
    ToolSchema,
)
from node.ipc.messages import PartKind, Refused
from node.protocol.messages import FinishReason
from tests.mlx.driver import GREEDY, Driver, make_spec, prompt
from tests.mlx.tiny import make_tiny

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bergen"]}, "coast": {"type": "boolean"}},
    "required": ["city", "coast"],
    "additionalProperties": False,
}
NAMES = ("Oslo, by the sea", "Bergen")
ONE_NAME = Constraint(ConstraintKind.CHOICE, "choice", json.dumps(NAMES))
LETTERS = 'start: pair+ "."\npair: "a" letter\nletter: /[b-d]/'


def schema(value: object = SCHEMA) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, "response_format", json.dumps(value))


def test_json_fits_its_schema(tiny: Path) -> None:
    with Driver(tiny) as driver:
        for seed in range(5):
            row = driver.alone(
                prompt(9, seed), SamplingParams(seed=seed), max_tokens=200, constraint=schema()
            )
            assert row.finish is FinishReason.STOP
            value = json.loads(row.text)
            assert value["city"] in ("Oslo", "Bergen")
            assert value.keys() == {"city", "coast"}


def test_a_code_fence_around_json_is_not_returned(tiny: Path) -> None:
    output = OutputFormat("think", "hermes", "</think>\n\n", is_json=True)
    fenced = 0
    with Driver(tiny) as driver:
        for seed in range(8):
            row = driver.alone(
                prompt(9, seed),
                SamplingParams(seed=seed),
                max_tokens=200,
                output=output,
                constraint=schema(),
            )
            assert row.finish is FinishReason.STOP
            assert json.loads(row.text).keys() == {"city", "coast"}
            fenced += driver.outputs["alone"][0] in driver.ids("`")
    assert 0 < fenced < 8


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (ConstraintKind.REGEX, "[0-9]{3}-x", r"[0-9]{3}-x"),
        (ConstraintKind.REGEX, "^a/b$", r"a/b"),
        (ConstraintKind.LARK, LETTERS.replace("pair+", "pair pair"), r"(a[b-d]){2}\."),
    ],
)
def test_text_is_of_the_grammar(tiny: Path, kind: ConstraintKind, text: str, expected: str) -> None:
    with Driver(tiny) as driver:
        row = driver.alone(prompt(9, 1), max_tokens=50, constraint=Constraint(kind, "p", text))
    assert row.finish is FinishReason.STOP
    assert re.fullmatch(expected, row.text)


def test_a_choice_is_one_of_the_texts(tiny: Path) -> None:
    with Driver(tiny) as driver:
        rows = [driver.alone(prompt(9, seed), constraint=ONE_NAME) for seed in range(3)]
    assert all(row.text in NAMES and row.finish is FinishReason.STOP for row in rows)


MARKUP = ("<think>", "<|im_end|>")


@pytest.mark.parametrize("text", MARKUP)
def test_the_text_of_a_marker_that_must_be_generated_is_generated(
    tmp_path: Path, text: str
) -> None:
    folder = make_tiny(tmp_path / "marked", markers=[*MARKUP[:1], "<tool_call>", "</tool_call>"])
    only = {
        "type": "object",
        "properties": {text: {"const": text}},
        "required": [text],
        "additionalProperties": False,
    }
    tools = (ToolSchema("f", only),)
    forced = OutputFormat("none", "hermes", tools=tools, must_call=True, parallel_calls=False)
    with Driver(folder) as driver:
        for constraint in (
            Constraint(ConstraintKind.CHOICE, "choice", json.dumps([text])),
            Constraint(ConstraintKind.REGEX, "regex", re.escape(text)),
            Constraint(ConstraintKind.LARK, "grammar", f"start: {json.dumps(text)}"),
        ):
            row = driver.alone(prompt(9, 1), max_tokens=100, constraint=constraint)
            assert (row.text, row.finish) == (text, FinishReason.STOP)
        row = driver.alone(prompt(9, 1), max_tokens=300, constraint=schema(only))
        assert json.loads(row.text) == {text: text}
        row = driver.alone(prompt(9, 2), SamplingParams(seed=1), max_tokens=900, output=forced)
        assert row.parts[-1].kind is PartKind.TOOL_ARGS
        assert json.loads(row.parts[-1].text) == {text: text}


def test_a_constraint_that_cannot_be_met_is_refused_before_any_token(tiny: Path) -> None:
    with Driver(tiny) as driver:
        reply = driver.submit("a", prompt(9, 1), constraint=schema({"type": "string", "enum": [1]}))
        assert isinstance(reply, Refused)
        assert reply.param == "response_format"
        assert "Unsatisfiable schema" in reply.reason
        assert not driver.rows
        assert driver.engine.wait_s() is None


@pytest.mark.parametrize("step", ["compile_answer", "request_constraint"])
def test_a_fault_of_a_grammar_is_reported_and_ends_no_other_sequence(
    tiny: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*args: object) -> None:
        raise ZeroDivisionError("by nought")

    with Driver(tiny) as driver:
        driver.submit("other", prompt(9, 2))
        monkeypatch.setattr(f"node.engine.scheduling.intake.{step}", fault)
        reply = driver.submit("a", prompt(9, 1), constraint=ONE_NAME)
        assert isinstance(reply, Refused)
        assert reply.reason.endswith("by nought") and reply.is_fault
        assert driver.run()["other"].finish is FinishReason.LENGTH


def test_a_forced_call_is_parsed_and_fits(tiny: Path) -> None:
    tools = (ToolSchema("find", SCHEMA), ToolSchema("stop", {"type": "object", "properties": {}}))
    output = OutputFormat("none", "hermes", tools=tools, must_call=True, parallel_calls=False)
    with Driver(tiny) as driver:
        for seed in range(4):
            row = driver.alone(
                prompt(9, seed), SamplingParams(seed=seed), max_tokens=300, output=output
            )
            assert row.finish is FinishReason.STOP
            start, arguments = row.parts
            assert (start.kind, arguments.kind) == (PartKind.TOOL_START, PartKind.TOOL_ARGS)
            expected = {"find": {"city", "coast"}, "stop": set()}[start.name]
            assert json.loads(arguments.text).keys() == expected


def test_reasoning_is_free_and_the_answer_behind_it_is_constrained(tiny: Path) -> None:
    output = OutputFormat("think", "none", "<|im_start|>assistant\n<think>\n")
    with Driver(tiny) as driver:
        row = driver.alone(
            prompt(9, 1), max_tokens=60, output=output, constraint=ONE_NAME, thinking_tokens=9
        )
        free = driver.bare(prompt(9, 1), 9)
        driver.assert_alike(prompt(9, 1), driver.outputs["alone"][:9], free)
        assert row.finish is FinishReason.STOP
        content = "".join(part.text for part in row.parts if part.kind is PartKind.CONTENT)
        assert content in NAMES


def test_an_end_of_reasoning_and_a_grammar_constrain_sequences_of_one_batch(tiny: Path) -> None:
    output = OutputFormat("think", "none", "<|im_start|>assistant\n<think>\n")
    with Driver(tiny) as driver:
        driver.submit("a", prompt(9, 1), constraint=ONE_NAME)
        driver.submit("b", prompt(9, 2), output=output, thinking_tokens=0)
        rows = driver.run()
    assert rows["a"].text in NAMES
    usage = rows["b"].usage
    assert usage is not None
    assert usage.reasoning_tokens == usage.reasoning_overflow_tokens


def test_a_stop_string_and_a_limit_end_an_answer_that_is_constrained(tiny: Path) -> None:
    with Driver(tiny) as driver:
        stopped = driver.alone(prompt(9, 1), stops=("s", "e"), constraint=ONE_NAME)
        cut = driver.alone(prompt(9, 1), max_tokens=2, constraint=ONE_NAME)
    assert stopped.finish is FinishReason.STOP
    assert any(name.startswith(stopped.text) for name in NAMES)
    assert stopped.text not in NAMES
    assert cut.finish is FinishReason.LENGTH


def test_sequences_that_are_not_constrained_generate_what_they_generate_alone(tiny: Path) -> None:
    sampled = SamplingParams(temperature=1.0, seed=5)
    with Driver(tiny, spec=make_spec(tiny, max_rows=10)) as driver:
        alone = []
        for at in range(7):
            driver.alone(prompt(9, at), GREEDY if at % 2 else sampled)
            alone.append(driver.outputs.pop("alone"))
        driver.submit("constrained", prompt(9, 20), max_tokens=200, constraint=schema())
        driver.submit("seeded", prompt(9, 21), sampled)
        for at in range(7):
            driver.submit(f"r{at}", prompt(9, at), GREEDY if at % 2 else sampled)
        driver.run()
        for at, expected in enumerate(alone):
            sampling = GREEDY if at % 2 else sampled
            driver.assert_alike(prompt(9, at), driver.outputs[f"r{at}"], expected, sampling)
        assert json.loads(driver.rows["constrained"].text)


def test_a_sequence_that_was_preempted_goes_on_with_its_grammar(tiny: Path) -> None:
    with Driver(tiny) as driver:
        driver.submit("alone", prompt(9, 1), max_tokens=200, constraint=schema())
        driver.run()
        expected = driver.outputs["alone"]
        driver.rows.clear()
        driver.submit("other", prompt(9, 2), max_tokens=100)
        driver.submit("back", prompt(9, 1), max_tokens=200, constraint=schema())
        while len(driver.row("back").output) < len(expected) // 2:
            driver.step()
        assert driver.call(driver.engine._steps.preempt)
        driver.run()
        driver.assert_alike(prompt(9, 1), driver.outputs["back"], expected, is_constrained=True)


def test_choices_are_constrained_each_by_itself(tiny: Path) -> None:
    with Driver(tiny) as driver:
        driver.submit("a", prompt(9, 1), SamplingParams(seed=1), constraint=ONE_NAME, choices=3)
        rows = driver.run()
    assert len(rows) == 3
    assert all(row.text in NAMES for row in rows.values())


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow(*args: object) -> None:
        began.set()
        assert goes_on.wait(60)

    monkeypatch.setattr("node.engine.scheduling.intake.compile_answer", slow)
    request = GenerateRequest("a", prompt(9, 1), 9, constraint=ONE_NAME)
    with Driver(tiny) as driver:
        assert driver.call(lambda: driver.engine.submit(request)) is None
        assert began.wait(60)
        again = driver.call(lambda: driver.engine.submit(request))
        assert isinstance(again, Refused)
        assert driver.engine.wait_s() == pytest.approx(0.002)
        deltas = driver.call(lambda: driver.engine.cancel("a"))
        assert [delta.finish for delta in deltas] == [FinishReason.CANCELLED]
        assert driver.engine.wait_s() is None
        goes_on.set()
        driver.step()
        assert not driver.call(driver.engine.take_responses)


def test_a_grammar_that_fails_ends_its_sequence_with_an_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(matcher: Matcher) -> None:
        raise GrammarFailed("Too complex.")

    with Driver(tiny) as driver:
        driver.submit("a", prompt(9, 1), constraint=ONE_NAME)
        driver.submit("b", prompt(9, 2))
        monkeypatch.setattr(Matcher, "mask", fails)
        rows = driver.run()
    assert (rows["a"].finish, rows["a"].error) == (FinishReason.REFUSED, "Too complex.")
    assert rows["b"].finish is FinishReason.LENGTH
