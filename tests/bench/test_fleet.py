"""Tests the figures that the fleet bench computes of its answers, and the sessions that it
writes."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from tests.bench import fleet_load, fleet_report
from tests.bench.fleet import ITEM_S, MEASURED, MEASURES
from tests.bench.fleet_load import Answer, Chat, Target, read_predicted
from tests.bench.fleet_report import ROWS, TABLE, bars
from tests.bench.fleet_reuse import (
    Foresight,
    foresight,
    ideal_cached,
    occupied_share,
    reuse,
    with_answers,
)
from tests.bench.fleet_sessions import Session, Shape, Turn, write
from tests.bench.parts import RUN_S, Parts, Result
from tests.bench.processes import BenchFailure
from tests.bench.replay import Ids

SHAPE = Shape((3, 1), 2, 40, 20, answer_tokens=4, think_s=1.0, begin_s=2.0)


def ids(*numbers: int) -> Ids:
    return np.asarray(numbers, dtype=np.int32)


def answer(
    session: str, turn: int, prompt: int = 0, cached: int = 0, predicted: int | None = None
) -> Answer:
    return Answer(
        session,
        turn,
        chat=[],
        sent_s=0.0,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=2,
        predicted_tokens=predicted,
    )


# --- sessions ---


def test_sessions_are_the_same_for_the_same_seed_alone() -> None:
    assert write(SHAPE, 1) == write(SHAPE, 1)
    assert {s.system for s in write(SHAPE, 1)}.isdisjoint(s.system for s in write(SHAPE, 2))


def test_sessions_of_a_kind_share_their_system_prompt() -> None:
    sessions = write(SHAPE, 1)
    systems = [session.system for session in sessions]
    assert sorted(systems.count(system) for system in set(systems)) == [1, 3]
    texts = [turn.text for session in sessions for turn in session.turns]
    assert len(texts) == len(set(texts)) == 8


# --- reuse ---


def test_the_ideal_keeps_an_answer_that_the_next_prompt_goes_on_with() -> None:
    answers = [answer("a", 0), answer("b", 0), answer("a", 1)]
    prompts = [ids(1, 2, 3), ids(1, 2, 9), ids(1, 2, 3, 4, 5, 6, 7)]
    kept = with_answers(answers, prompts)
    assert [list(each) for each in kept] == [[1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 3, 4, 5, 6, 7]]
    assert ideal_cached(prompts, kept) == [0, 2, 5]


def test_an_answer_counts_for_nothing_where_the_next_prompt_differs_before_it() -> None:
    answers = [answer("a", 0), answer("a", 1)]
    prompts = [ids(1, 2, 3), ids(1, 2, 4, 5)]
    assert ideal_cached(prompts, with_answers(answers, prompts)) == [0, 2]


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    assert ideal_cached([ids(1, 2), ids(1, 2)], [ids(1, 2), ids(1, 2)]) == [0, 1]


def test_reuse_is_counted_against_the_ideal() -> None:
    rendered = iter([ids(1, 2, 3, 4), ids(1, 2, 3, 9)])
    answers = [answer("a", 0, prompt=4), answer("b", 0, prompt=4, cached=2)]
    found = reuse(answers, lambda _chat: next(rendered))
    assert (found.prompt_tokens, found.cached_tokens, found.ideal_tokens) == (8, 2, 3)
    assert found.uncached_tokens == 6
    assert found.of_ideal == pytest.approx(2 / 3)
    assert (found.share, found.ideal_share) == (2 / 8, 3 / 8)


def test_another_count_of_tokens_at_the_node_is_a_failure() -> None:
    with pytest.raises(BenchFailure, match="5 tokens for its node, and 2 here"):
        reuse([answer("a", 0, prompt=5)], lambda _chat: ids(1, 2))


def test_foresight_counts_promises_kept_and_what_they_fall_short_of() -> None:
    answers = [
        answer("a", 0, prompt=1000, cached=256, predicted=0),
        answer("a", 1, prompt=1000, cached=256, predicted=0),
        answer("a", 2, prompt=1000, cached=10, predicted=11),
        answer("a", 3, prompt=1000),
    ]
    found = foresight(answers)
    assert found == Foresight(predicted=3, kept=2 / 3, shortfall_p95=1.0)


def test_there_is_no_foresight_where_no_router_reports_it() -> None:
    assert foresight([answer("a", 0)]) is None


def test_a_slack_grows_with_the_prompt() -> None:
    found = foresight([answer("a", 0, prompt=100_000, cached=2000, predicted=0)])
    assert found is not None
    assert found.shortfall_p95 == 1.0


def test_a_node_is_occupied_while_any_request_is_under_way() -> None:
    answers = [answer("a", 0), answer("b", 0), answer("a", 1), answer("b", 1)]
    times_s = [(10.0, 14.0), (11.0, 12.0), (13.0, 15.0), (18.0, 20.0)]
    for each, (sent_s, end_s) in zip(answers, times_s, strict=True):
        each.sent_s, each.end_s = sent_s, end_s
    assert occupied_share(answers) == 0.7


@pytest.mark.parametrize(
    ("header", "predicted"),
    [("12/34", 12), ("0/0", 0), ("34", None), ("", None), ("-/3", None), ("3/", None)],
)
def test_a_prediction_stands_before_its_outcome(header: str, predicted: int | None) -> None:
    assert read_predicted(header) == predicted


# --- load ---


@asynccontextmanager
async def endpoint(lines: Sequence[bytes], seen: list[Chat]) -> AsyncIterator[str]:
    """Answers every chat with the lines; its URL."""

    async def serve(request: web.Request) -> web.StreamResponse:
        seen.append((await request.json())["messages"])
        response = web.StreamResponse(headers={"x-fleet-node": "node1"})
        await response.prepare(request)
        for line in lines:
            await response.write(line + b"\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 7},
}
CONTENT = b'data: {"choices":[{"delta":{"content":"word"}}]}'
END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode()
TALK = [Session("s0", "system", (Turn(0.0, "one"), Turn(0.0, "two")))]


async def test_an_answer_goes_into_the_next_turn() -> None:
    seen: list[Chat] = []
    comment = b": fleet node=node2 model=m cached=5/7"
    async with endpoint([comment, CONTENT, END, b"data: [DONE]"], seen) as url:
        answers = await fleet_load.run(Target(url, "key", "m", 2), TALK, limit_s=10.0)
    assert [message["content"] for message in seen[1]] == ["system", "one", "word", "two"]
    assert [(each.turn, each.node) for each in answers] == [(0, "node2"), (1, "node2")]
    first = answers[0]
    assert (first.prompt_tokens, first.cached_tokens, first.predicted_tokens) == (9, 7, 5)
    assert 0.0 < first.ttft_s <= first.end_s - first.sent_s


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([b'data: {"error":{"message":"broken"}}'], "broken"),
        ([CONTENT], "no usage"),
        ([END], "no content"),
    ],
)
async def test_a_turn_that_fails_ends_the_run(lines: list[bytes], why: str) -> None:
    async with endpoint(lines, []) as url:
        with pytest.raises(BenchFailure, match=why):
            await fleet_load.run(Target(url, "key", "m", 2), TALK, limit_s=10.0)


async def test_sessions_that_take_too_long_end_the_run() -> None:
    late = [Session("s0", "system", (Turn(60.0, "one"),))]
    with pytest.raises(BenchFailure, match="not over after 0 s"):
        await fleet_load.run(Target("http://127.0.0.1:9", "key", "m", 2), late, limit_s=0.01)


# --- the report ---


def test_every_part_has_a_measure_a_time_and_rows() -> None:
    assert set(MEASURED.items) == set(MEASURES) == set(ITEM_S) == {"setup", TABLE, *ROWS}
    assert max(ITEM_S.values()) < RUN_S


def test_the_medians_of_the_rounds_are_compared_with_the_bars() -> None:
    rounds = [
        {"phase": "sessions", "of_ideal": share, "kept": 1.0, "shortfall_p95": 0.5}
        for share in (0.9, 0.96, 0.97)
    ]
    verdicts = {figure.what: figure.passed for figure in bars("sessions-tiny", {"ours": rounds})}
    assert verdicts == {
        "cached tokens, of the ideal": True,
        "predictions kept": True,
        "shortfall p95, of its slack": True,
    }


def test_what_was_not_measured_has_no_bar() -> None:
    assert bars("sessions-tiny", {"ours": [{"phase": "sessions", "of_ideal": 0.5}]}) != []
    assert bars("sessions-tiny", {}) == []


def test_the_lesser_share_of_a_split_is_compared_with_its_bar() -> None:
    line = {"phase": "sessions", "hit_rate": 0.754, "split": [100, 220]}
    verdicts = {figure.what: figure.passed for figure in bars("fake-sessions", {"ours": [line]})}
    assert verdicts == {"prefix hit rate": True, "lesser share": False}


def test_a_router_has_a_column_and_a_round_of_ours_has_none() -> None:
    result: Result = {"lines": [{"phase": "sessions"}]}
    assert set(fleet_report.by_router("beside-routers", {"ours.1": result})) == {"ours"}
    rounds = fleet_report.by_router("sessions-tiny", {"1": result, "2": result})
    assert {name: len(found) for name, found in rounds.items()} == {"ours": 2}


# --- parts ---


def test_a_run_measures_what_is_missing_and_keeps_what_failed(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "results", {"first": ("a", "b"), "second": ("c",)})

    def measure(item: str) -> list[Result]:
        if item == "b":
            raise BenchFailure("no such thing")
        return [{"phase": item}]

    later_s = time.monotonic() + 1000.0
    parts.run("first", measure, lambda _item: 1.0, later_s)
    assert parts.missing("first") == []
    assert parts.next() == "second"
    assert parts.read()["first"]["b"]["failed"] == "no such thing"
    parts.forget("first", all_of_it=False, failures=True)
    assert parts.missing("first") == ["b"]
    parts.forget("first", all_of_it=True, failures=False)
    assert parts.missing("first") == ["a", "b"]


def test_an_item_is_not_begun_where_the_run_has_no_time_for_it(tmp_path: Path) -> None:
    parts = Parts(tmp_path, {"first": ("a",)})
    parts.run("first", lambda item: [{"phase": item}], lambda _item: 1.0, deadline_s=0.0)
    assert parts.missing("first") == ["a"]
