"""Whole workloads: what becomes of every call, and the same again for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from router.simulator.fleet import NodeSpec, equal_fleet, spread
from router.simulator.node import Job, JobEnded, JobEvent, Node
from router.simulator.policies import Dispatch, Move, Retry, baseline
from router.simulator.replay import play
from router.simulator.report import figures
from router.simulator.table import BOUND, OURS, POLICIES, compare
from router.simulator.trace import read_trace
from tests.router.simulator.building import line, talks, workload

SMALL = spread([NodeSpec(count=3, cache_tokens=12_000, max_rows=4)])


@pytest.mark.parametrize("name", POLICIES)
def test_every_call_is_answered_once_after_the_one_before_it(name: str) -> None:
    made = workload(talks(6, 5), clones=2, gap_s=1.0)
    played = play(made, SMALL, POLICIES[name])
    assert len(played.jobs) == made.calls
    for job in played.jobs:
        assert job.arrived_s <= job.sent_s <= job.began_s < job.first_s <= job.ended_s
    by_number = {job.call.number: job for job in played.jobs}
    for script in made.scripts:
        for before, after in zip(script.calls, script.calls[1:], strict=False):
            pause_s = by_number[after.number].arrived_s - by_number[before.number].ended_s
            assert pause_s == pytest.approx(before.think_s)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    made = workload(talks(5, 4), gap_s=1.0)
    (first,) = compare([name], made, SMALL, 7)
    (again,) = compare([name], made, SMALL, 7)
    assert first == again


def test_another_seed_gives_other_figures() -> None:
    trace = talks(5, 4)
    found = {
        compare(["least_in_flight"], workload(trace, gap_s=1.0, seed=seed), SMALL, seed)[0]
        for seed in range(3)
    }
    assert len(found) == 3


def test_ours_beats_round_robin_and_nothing_beats_the_limit_by_much() -> None:
    made = workload(talks(12, 8, first_blocks=60), gap_s=2.0)
    rows = {row.policy: row for row in compare(POLICIES, made, equal_fleet(4), 1)}
    assert rows[OURS].ttft_mean_s < 0.6 * rows["round_robin"].ttft_mean_s
    assert rows[OURS].cached_share > rows["round_robin"].cached_share
    assert rows[BOUND].ttft_mean_s < 1.1 * rows[OURS].ttft_mean_s


def test_on_unequal_nodes_ours_is_far_ahead_of_every_other_router() -> None:
    fast, slow = NodeSpec(prefill_tokens_per_s=2000), NodeSpec(prefill_tokens_per_s=100)
    made = workload(talks(8, 6, first_blocks=60), gap_s=10.0)
    rows = compare(POLICIES, made, spread([fast, slow, slow]), 1)
    means = {row.policy: row.ttft_mean_s for row in rows}
    others = min(mean for name, mean in means.items() if name not in (OURS, BOUND))
    assert means[OURS] < 0.5 * others


def test_tokens_count_as_prefilled_again_where_any_node_had_computed_them() -> None:
    trace = read_trace([line(0, 300, 0, [1, 2, 3]), line(60_000, 300, 0, [1, 2, 3])], 100)
    (row,) = compare(["round_robin"], workload(trace), equal_fleet(2), 1)
    assert row.reprefilled_tokens == 300
    assert row.cached_share == 0
    (row,) = compare(["round_robin"], workload(trace), equal_fleet(1), 1)
    assert row.reprefilled_tokens == 0
    assert row.cached_share == pytest.approx(299 / 600, abs=1e-4)


def test_the_figures_of_one_request_are_its_own() -> None:
    trace = read_trace([line(0, 600, 0, range(6))], 100)
    spec = NodeSpec(prefill_half_depth_tokens=1e18)
    row = figures("x", play(workload(trace), spread([spec, spec]), baseline("round_robin")))
    assert msgspec.to_builtins(row) == {
        "policy": "x",
        "ttft_mean_s": 1.0,
        "ttft_p50_s": 1.0,
        "ttft_p99_s": 1.0,
        "longest_wait_s": 0.0,
        "reprefilled_tokens": 0,
        "cached_share": 0.0,
        "imbalance": 2.0,
    }


def test_models_of_one_trace_are_loaded_where_they_are_wanted() -> None:
    lines = [
        line(at * 1000, 200, 20, [at, at + 100])[:-1] + f', "model": "m{at % 2}"}}'
        for at in range(8)
    ]
    made = workload(read_trace(lines, 100))
    for name in POLICIES:
        played = play(made, spread([NodeSpec(load_s=3.0)]), POLICIES[name])
        assert all(job.ended_s < math.inf for job in played.jobs)


def test_nodes_are_shared_out_among_models_that_do_not_fit_together() -> None:
    made = workload(talks(12, 8, first_blocks=60), gap_s=4.0)
    scripts = tuple(
        replace(script, calls=tuple(replace(call, model="ab"[number % 2]) for call in script.calls))
        for number, script in enumerate(made.scripts)
    )
    made = replace(made, scripts=scripts, models=("a", "b"))
    rows = {row.policy: row for row in compare(POLICIES, made, equal_fleet(4), 1)}
    others = min(row.ttft_mean_s for name, row in rows.items() if name not in (OURS, BOUND))
    assert rows[OURS].ttft_mean_s < 0.5 * others
    # Each model's sessions share one beginning, and nothing is lost to loads.
    assert rows[OURS].reprefilled_tokens < 4 * 6_100


def test_a_router_sends_nothing_to_where_the_model_is_not_on_disk() -> None:
    lines = [
        line(at * 1000, 200, 20, [at, at + 100])[:-1] + f', "model": "m{at % 2}"}}'
        for at in range(8)
    ]
    made = workload(read_trace(lines, 100))
    specs = spread([NodeSpec(count=2, disk_models=1, load_s=3.0)])
    played = play(made, specs, POLICIES[OURS])
    assert [job.node for job in played.jobs] == [at % 2 for at in range(8)]
    others = play(made, specs, POLICIES["round_robin"])
    assert max(job.first_s - job.arrived_s for job in others.jobs) > 4e9 / 110e6


class _Refusing:
    """Refuses each call once, then keeps it until a time it names."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self.refused: set[int] = set()
        self.waiting: list[Job] = []
        self.due_s: float | None = None

    def on_arrival(self, job: Job, now_s: float) -> list[Move]:
        if job.call.number not in self.refused:
            self.refused.add(job.call.number)
            return [Retry(job, 5.0)]
        self.waiting.append(job)
        self.due_s = now_s + 2.0
        return []

    def on_event(self, event: JobEvent, now_s: float) -> list[Move]:
        assert not isinstance(event, JobEnded) or event.job.ended_s == now_s
        return []

    def on_time(self, now_s: float) -> list[Move]:
        assert now_s == self.due_s
        self.due_s = None
        waiting, self.waiting = self.waiting, []
        return [Dispatch(job, 0) for job in waiting]

    def wake_s(self) -> float | None:
        return self.due_s


def test_a_refused_call_is_repeated_and_a_policy_is_woken_when_it_requests_that() -> None:
    made = workload(read_trace([line(0, 100, 0, [1])], 100))
    (job,) = play(made, equal_fleet(1), _Refusing).jobs
    assert (job.arrived_s, job.sent_s) == (0.0, 7.0)


def test_a_policy_that_loses_a_call_is_found_out() -> None:
    class Losing(_Refusing):
        def on_arrival(self, job: Job, now_s: float) -> list[Move]:
            return []

    made = workload(read_trace([line(0, 100, 0, [1])], 100))
    with pytest.raises(RuntimeError, match="1 calls were never completed"):
        play(made, equal_fleet(1), Losing)
