"""One simulated node against times worked out by hand."""

from __future__ import annotations

import math

import pytest

from router.simulator.fleet import NodeSpec
from router.simulator.node import FirstToken, Job, JobEnded, Node
from tests.router.simulator.building import job

FLAT = {"prefill_tokens_per_s": 100.0, "prefill_half_depth_tokens": 1e18}


def node(models: tuple[str, ...] = ("",), **options: float | bool) -> Node:
    chosen = {**FLAT, "decode_tokens_per_s": 10.0, "decode_slowdown": 0.5, **options}
    return Node(0, NodeSpec(**chosen), models)  # type: ignore[arg-type]


def run(node: Node, jobs: list[Job]) -> None:
    """Submits each at its arrival and lets everything end."""
    waiting = list(jobs)
    while waiting or node.next_s() < math.inf:
        if waiting and waiting[0].arrived_s <= node.next_s():
            first = waiting.pop(0)
            node.submit(first, first.arrived_s)
        else:
            node.advance(node.next_s())


def test_a_cold_prompt_takes_its_tokens_at_the_node_s_rate() -> None:
    one = job(1, (1, 2, 3), output=20)
    run(node(), [one])
    assert [one.first_s, one.ended_s] == pytest.approx([3.0, 5.0])


def test_prefill_slows_down_with_depth() -> None:
    spec = NodeSpec(prefill_tokens_per_s=100, prefill_half_depth_tokens=1000)
    assert spec.prefill_s(0, 1000) == pytest.approx(15.0)
    assert spec.prefill_s(0, 400) + spec.prefill_s(400, 1000) == pytest.approx(15.0)


def test_one_prefill_runs_at_once_in_order_of_arrival() -> None:
    jobs = [job(1, (1, 2)), job(2, (3,), 0.5), job(3, (4,), 0.5)]
    run(node(), jobs)
    assert [each.first_s for each in jobs] == pytest.approx([2.0, 3.0, 4.0])
    assert [each.began_s for each in jobs] == pytest.approx([0.0, 2.0, 3.0])


def test_rows_slow_each_other() -> None:
    one, two = job(1, (1,), output=20), job(2, (2,), output=20)
    run(node(), [one, two])
    # Alone 10 tokens from 1 s to 2 s; then both at 10 / 1.5 tokens/s; the second ends alone.
    assert one.ended_s == pytest.approx(2.0 + 10 / (10 / 1.5))
    assert two.ended_s == pytest.approx(one.ended_s + 10 / 10)


def test_no_prefill_begins_while_all_rows_are_busy() -> None:
    jobs = [job(1, (1,), output=50), job(2, (2,), output=10)]
    run(node(max_rows=1), jobs)
    assert jobs[1].began_s == pytest.approx(jobs[0].ended_s) == pytest.approx(6.0)


def test_what_a_finished_request_left_is_not_computed_again() -> None:
    one = job(1, (1, 2, 3), output=100, answer=4)
    two = job(2, (1, 2, 3, 4, 5), 100.0)
    run(node(), [one, two])
    assert two.cached_tokens == 400
    assert two.first_s - two.began_s == pytest.approx(1.0)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    jobs = [job(1, (1, 2)), job(2, (1, 2), 100.0)]
    run(node(), jobs)
    assert jobs[1].cached_tokens == 199
    assert jobs[1].first_s == pytest.approx(100.01)


def test_what_was_evicted_is_computed_again() -> None:
    jobs = [job(1, (1, 2, 3)), job(2, (7, 8), 100.0), job(3, (1, 2, 3), 200.0)]
    run(node(cache_tokens=400), jobs)
    assert jobs[2].cached_tokens == 200
    assert jobs[2].first_s == pytest.approx(201.0)


def test_a_node_without_a_cache_caches_nothing() -> None:
    jobs = [job(1, (1, 2)), job(2, (1, 2), 100.0)]
    run(node(cache_tokens=0), jobs)
    assert jobs[1].cached_tokens == 0


def test_a_snapshot_only_model_goes_on_at_the_end_of_an_earlier_prompt() -> None:
    jobs = [job(1, (1, 2)), job(2, (1, 2, 3), 100.0), job(3, (1, 9), 200.0)]
    run(node(snapshot_only=True), jobs)
    assert [each.cached_tokens for each in jobs] == [0, 200, 0]


def test_a_prefix_on_disk_is_read_back_at_the_disk_s_rate() -> None:
    jobs = [job(1, (1, 2, 3)), job(2, (7, 8), 100.0), job(3, (1, 2, 3, 4), 200.0)]
    run(node(cache_tokens=300, disk_tokens=1000, restore_tokens_per_s=1000.0), jobs)
    assert jobs[2].cached_tokens == 300
    # 200 tokens from disk, 100 in memory, 100 computed.
    assert jobs[2].first_s == pytest.approx(200.0 + 0.2 + 1.0)


def test_a_model_that_is_not_resident_is_loaded_when_the_other_is_idle() -> None:
    one = job(1, (1,), output=30, model="a")
    two = job(2, (2,), 0.5, model="b")
    three = job(3, (1,), 50.0, model="a")
    run(node(("a", "b"), load_s=5.0), [one, two, three])
    assert one.ended_s == pytest.approx(4.0)
    assert two.began_s == pytest.approx(4.0)
    assert two.first_s == pytest.approx(4.0 + 5.0 + 1.0)
    assert three.cached_tokens == 0
    assert three.first_s == pytest.approx(50.0 + 5.0 + 1.0)


def test_a_model_that_is_not_on_disk_is_copied_once_before_its_first_load() -> None:
    one = job(1, (1,), model="b")
    two = job(2, (1,), 50.0, model="a")
    three = job(3, (1,), 100.0, model="b")
    only = node(("a", "b"), load_s=5.0, disk_models=1, model_bytes=800, lan_bytes_per_s=100.0)
    assert (only.load_s("a"), only.load_s("b")) == (5.0, 13.0)
    run(only, [one, two, three])
    assert one.first_s == pytest.approx(8.0 + 5.0 + 1.0)
    assert two.first_s == pytest.approx(50.0 + 5.0 + 1.0)
    assert three.first_s == pytest.approx(100.0 + 5.0 + 1.0)


def test_several_models_stay_resident_where_they_fit() -> None:
    jobs = [job(1, (1,), model="a"), job(2, (2,), 0.0, model="b")]
    run(node(("a", "b"), resident_models=2), jobs)
    assert [each.first_s for each in jobs] == pytest.approx([1.0, 2.0])


def test_a_node_goes_on_with_what_is_loaded_while_it_loads_another_model() -> None:
    first = job(1, (1,), model="a")
    load = job(2, (2,), 0.5, model="c")
    others = [job(number, (number,), float(number), model="a") for number in (3, 4)]
    only = node(("a", "b", "c"), resident_models=2, load_s=5.0, min_residency_s=0.0)
    run(only, [first, load, *others])
    assert [each.first_s for each in others] == pytest.approx([4.0, 5.0])
    assert (load.began_s, load.first_s) == pytest.approx((0.5, 0.5 + 5.0 + 1.0))
    assert only.busy_s == pytest.approx(5.0 + 4.0)


def test_a_node_reports_what_happened_and_counts_what_is_in_flight() -> None:
    one, only = job(1, (1,), output=10), node()
    only.submit(one, 0.0)
    assert only.in_flight == 1
    assert only.next_s() == pytest.approx(1.0)
    assert only.advance(only.next_s()) == [FirstToken(one)]
    assert only.advance(only.next_s()) == [JobEnded(one)]
    assert (only.in_flight, only.next_s()) == (0, math.inf)
    assert only.busy_s == pytest.approx(1.0)
