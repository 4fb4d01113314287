"""From a trace to calls: segments, clones, starts."""

from __future__ import annotations

import math

from router.simulator.trace import read_trace
from router.simulator.workload import MAX_THINK_S, MIN_THINK_S, SEGMENT_TOKENS
from tests.router.simulator.building import line, talks, workload


def test_prompts_share_the_segments_of_their_common_blocks() -> None:
    made = workload(read_trace([line(0, 400, 0, [1, 2, 3, 4]), line(9, 400, 0, [1, 2, 3, 5])], 100))
    first, second = (script.calls[0] for script in made.scripts)
    assert first.path[:-1] == second.path[:-1]
    assert first.ends[-2:] == (300, 400)
    assert first.path[-1] != second.path[-1]


def test_the_same_block_after_another_one_is_another_segment() -> None:
    made = workload(read_trace([line(0, 200, 0, [1, 9]), line(9, 200, 0, [2, 9])], 100))
    first, second = (script.calls[0] for script in made.scripts)
    assert not set(first.path) & set(second.path)


def test_long_stretches_are_cut_into_segments() -> None:
    (script,) = workload(read_trace([line(0, 6400, 0, range(100))], 64)).scripts
    ends = script.calls[0].ends
    lengths = [after - before for before, after in zip((0, *ends), ends, strict=False)]
    assert max(lengths) <= SEGMENT_TOKENS
    assert ends[-1] == 6400
    assert len(ends) == 8


def test_an_answer_is_what_the_next_prompt_goes_on_with() -> None:
    lines = [line(0, 250, 120, [1, 2, 3], 1), line(1, 500, 10, [1, 2, 4, 5, 6], 1)]
    (script,) = workload(read_trace(lines, 100)).scripts
    first, second = script.calls
    assert first.stored_ends[-1] == 300
    assert first.stored[-1] in second.path
    assert set(second.path) & set(first.path) == {first.path[0]}


def test_an_answer_that_no_prompt_goes_on_with_is_kept_by_itself() -> None:
    (script,) = workload(read_trace([line(0, 250, 120, [1, 2, 3])], 100)).scripts
    (only,) = script.calls
    assert only.stored[:-1] == only.path
    assert only.stored_ends[-1] == 370


def test_a_prompt_without_ids_is_one_block_of_its_own() -> None:
    made = workload(read_trace([line(0, 400, 0, []), line(9, 400, 0, [])], 100))
    first, second = (script.calls[0] for script in made.scripts)
    assert (len(first.path), first.ends[-1]) == (1, 400)
    assert first.path != second.path


def test_clones_share_the_first_two_blocks_only() -> None:
    trace = read_trace([line(0, 400, 0, [1, 2, 3, 4], 1)], 100)
    made = workload(trace, clones=3)
    paths = [script.calls[0].path for script in made.scripts]
    assert len({path[0] for path in paths}) == 1
    assert len({path[1] for path in paths}) == 3
    assert made.scripts[0].calls[0].ends[0] == 200
    assert made.distinct_tokens == 200 + 3 * 200
    assert len({script.calls[0].session for script in made.scripts}) == 3


def test_models_share_nothing() -> None:
    lines = [line(0, 100, 0, [1]), line(0, 100, 0, [1])[:-1] + ', "model": "x"}']
    made = workload(read_trace(lines, 100))
    assert made.models == ("", "x")
    assert made.scripts[0].calls[0].path != made.scripts[1].calls[0].path


def test_the_pause_after_an_answer_is_taken_from_the_trace() -> None:
    times = (0, 1000, 9000, 100_000)
    lines = [line(at, 100 * (turn + 1), 0, range(turn + 1), 1) for turn, at in enumerate(times)]
    (script,) = workload(read_trace(lines, 100)).scripts
    assert [call.think_s for call in script.calls] == [MIN_THINK_S, 5.0, MAX_THINK_S, math.inf]


def test_sessions_start_one_every_gap_in_an_order_of_the_seed() -> None:
    trace = talks(8, 1)
    made = workload(trace, gap_s=10, seed=1)
    assert [int(script.start_s // 10) for script in made.scripts] == list(range(8))
    assert workload(trace, gap_s=10, seed=1) == made
    other = workload(trace, gap_s=10, seed=2)
    sessions = [script.calls[0].session for script in made.scripts]
    assert [script.calls[0].session for script in other.scripts] != sessions


def test_requests_without_sessions_arrive_at_their_times_and_clones_later() -> None:
    trace = read_trace([line(5000, 100, 0, [1]), line(7500, 100, 0, [2])], 100)
    assert [script.start_s for script in workload(trace).scripts] == [0.0, 2.5]
    cloned = workload(trace, clones=2, gap_s=4).scripts
    assert len(cloned) == 4
    assert 0.0 <= cloned[2].start_s < 4.0
