"""Several answers to one prompt: each is what it would be alone, and the prompt is prefilled
once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from node.engine.model.load import LoadedModel
from node.ipc.generate import SamplingParams
from node.ipc.messages import Accepted, Delta, MemoryLease, Refused
from node.protocol.messages import FinishReason
from tests.mlx.driver import GREEDY, Driver, make_spec, place, prompt
from tests.mlx.tiny import make_tiny

pytestmark = pytest.mark.mlx

WARM = SamplingParams(temperature=1.0, seed=40)
ANSWER_TOKENS = 8


def singles(engine: Driver, tokens: tuple[int, ...], count: int, limit: int) -> list[list[int]]:
    """Returns the outputs of requests of one choice each, with the seeds that the choices would
    have."""
    out = []
    for choice in range(count):
        sampling = msgspec.structs.replace(WARM, seed=40 + choice)
        engine.alone(tokens, sampling, max_tokens=limit)
        out.append(engine.outputs.pop("alone"))
    return out


def choices(engine: Driver, uid: str, count: int) -> list[list[int]]:
    return [engine.outputs[place(uid, choice)] for choice in range(count)]


def assert_choices(
    engine: Driver, uid: str, tokens: tuple[int, ...], expected: list[list[int]]
) -> None:
    for output, wanted in zip(choices(engine, uid, len(expected)), expected, strict=True):
        engine.assert_alike(tokens, output, wanted, WARM)


def test_each_choice_is_the_answer_to_a_request_of_its_own(kind: Path) -> None:
    with Driver(kind) as engine:
        for length in (1, 2, 100):
            tokens = prompt(length, length)
            expected = singles(engine, tokens, 3, ANSWER_TOKENS)
            engine.call(engine.engine.clear_cache)
            # The second time all of the prompt is cached, but for its last token.
            for uid in (f"fresh {length}", f"cached {length}"):
                engine.submit(uid, tokens, WARM, max_tokens=ANSWER_TOKENS, choices=3)
                engine.run()
                assert_choices(engine, uid, tokens, expected)


def test_choices_leave_the_output_of_other_sequences_as_it_is(tiny: Path) -> None:
    with Driver(tiny, spec=make_spec(tiny, max_rows=6)) as engine:
        expected = singles(engine, prompt(90, 1), 3, ANSWER_TOKENS)
        for uid, length in (("a", 40), ("b", 90)):
            engine.submit(uid, prompt(length, length), max_tokens=30)
        engine.steps_until("a", 4)
        engine.submit("n", prompt(90, 1), WARM, max_tokens=ANSWER_TOKENS, choices=3)
        engine.submit("c", prompt(25, 3), max_tokens=30)
        engine.run()
        assert_choices(engine, "n", prompt(90, 1), expected)
        for uid, tokens in (("a", prompt(40, 40)), ("b", prompt(90, 90)), ("c", prompt(25, 3))):
            engine.assert_greedy(uid, tokens)


def test_choices_without_a_seed_differ(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("n", prompt(20, 1), SamplingParams(), max_tokens=20, choices=4)
        engine.run()
        assert len({tuple(output) for output in choices(engine, "n", 4)}) == 4


def test_the_prompt_counts_once_and_the_output_of_all_choices(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.alone(prompt(100, 1), max_tokens=1)
        reply = engine.submit("n", prompt(100, 1), WARM, max_tokens=9, choices=3)
        assert reply == Accepted("n", 100, 99)
        rows = engine.run()
        choice_rows = [rows[place("n", choice)] for choice in range(3)]
        (usage,) = [row.usage for row in choice_rows if row.usage is not None]
        assert (usage.prompt_tokens, usage.cached_tokens) == (100, 99)
        assert usage.completion_tokens == sum(row.token_count for row in choice_rows)
        stats = engine.call(engine.engine.stats)
        assert stats.cached_tokens == 99


def test_the_last_delta_of_the_last_choice_is_the_requests_last(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("n", prompt(10, 1), WARM, max_tokens=5, choices=3)
        ends = [delta for delta in steps(engine) if delta.finish is not None]
        assert [delta.open_choices for delta in ends] == [2, 1, 0]
        assert [delta.is_last for delta in ends] == [False, False, True]
        assert {delta.choice for delta in ends} == {0, 1, 2}


def steps(engine: Driver) -> Iterator[Delta]:
    while any(row.finish is None for row in engine.rows.values()):
        yield from engine.step()


@pytest.mark.parametrize("phase", ["waiting", "prefilling", "decoding"])
def test_a_cancel_ends_all_choices(tiny: Path, phase: str) -> None:
    spec = make_spec(tiny, prefill_chunk_tokens=64)
    with Driver(tiny, spec=spec) as engine:
        if phase == "waiting":
            engine.submit("other", prompt(10, 2), max_tokens=40)
            engine.submit("another", prompt(10, 3), max_tokens=40)
            engine.steps_until("another", 1)
        engine.submit("n", prompt(300, 1), WARM, max_tokens=50, choices=3)
        engine.step()
        if phase == "decoding":
            engine.steps_until("n", 3)
        last = engine.cancel("n")
        assert last is not None and last.is_last
        assert last.usage is not None and last.usage.prompt_tokens == 300
        choice_rows = [engine.rows[place("n", choice)] for choice in range(3)]
        assert {row.finish for row in choice_rows} == {FinishReason.CANCELLED}
        assert last.usage.completion_tokens == sum(row.token_count for row in choice_rows)
        engine.run()
        stats = engine.call(engine.engine.stats)
        assert (stats.waiting_rows, stats.prefilling_rows, stats.decoding_rows) == (0, 0, 0)


def test_choices_wait_until_there_are_places_for_all(tiny: Path) -> None:
    with Driver(tiny) as engine:
        for uid in "ab":
            engine.submit(uid, prompt(10, 2), max_tokens=6)
        engine.steps_until("b", 1)
        engine.submit("n", prompt(10, 1), WARM, max_tokens=5, choices=3)
        stats = engine.call(engine.engine.stats)
        assert stats.waiting_rows == 3
        most = 0
        while any(row.finish is None for row in engine.rows.values()):
            engine.step()
            most = max(most, len(engine.engine._running.rows()))
        assert most <= 4


def test_more_choices_than_places_are_refused(tiny: Path) -> None:
    with Driver(tiny) as engine:
        refused = engine.submit("n", prompt(10, 1), choices=5)
        assert isinstance(refused, Refused) and refused.param == "n"
        assert "4 choices" in refused.reason


def test_a_prompt_that_is_only_kept_has_no_choices(tiny: Path) -> None:
    with Driver(tiny) as engine:
        refused = engine.submit("n", prompt(10, 1), choices=2, warm=True)
        assert isinstance(refused, Refused) and refused.param == "n"


@pytest.mark.parametrize("rooms", [1, 2])
def test_choices_without_room_wait_for_it_and_generate_the_same(tiny: Path, rooms: int) -> None:
    with Driver(tiny) as engine:
        expected = singles(engine, prompt(100, 1), 3, ANSWER_TOKENS)
        live_bytes = engine.engine._layout.live_bytes(256)
    lease = MemoryLease(1 << 20, live_kv_bytes=rooms * live_bytes, stored_kv_bytes=0)
    with Driver(tiny, spec=make_spec(tiny, lease=lease)) as engine:
        engine.submit("n", prompt(100, 1), WARM, max_tokens=ANSWER_TOKENS, choices=3)
        engine.submit("b", prompt(50, 2), max_tokens=ANSWER_TOKENS)
        most = 0
        while any(row.finish is None for row in engine.rows.values()):
            engine.step()
            most = max(most, len(engine.engine._running.rows()))
        assert most == rooms
        assert_choices(engine, "n", prompt(100, 1), expected)


def test_a_choice_that_is_preempted_goes_on_later_and_the_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two sequences of 230 tokens and such an answer take a step of the cache each; then they grow.
    monkeypatch.setattr("node.engine.decoding.row.USUAL_OUTPUT_TOKENS", 10)
    folder = make_tiny(tmp_path / "short", max_position_embeddings=300)
    with Driver(folder, change=endless) as engine:
        expected = singles(engine, prompt(230, 1), 2, 70)
        live_bytes = engine.engine._layout.live_bytes(256)
    lease = MemoryLease(1 << 20, live_kv_bytes=3 * live_bytes, stored_kv_bytes=0)
    with Driver(folder, spec=make_spec(folder, lease=lease), change=endless) as engine:
        engine.submit("n", prompt(230, 1), WARM, max_tokens=None, choices=2)
        engine.steps_until("n", 40)
        assert [row.choice for row in engine.engine._running.rows()] == [0], "they outgrew it"
        assert engine.rows["n#1"].token_count > 20
        engine.run()
        assert_choices(engine, "n", prompt(230, 1), expected)


def endless(model: LoadedModel) -> LoadedModel:
    """The same model, whose answers have no end of their own."""
    return replace(model, end_tokens=frozenset())


def test_a_step_that_fails_ends_all_choices_those_that_wait_too(tiny: Path) -> None:
    with Driver(tiny) as engine:
        live_bytes = engine.engine._layout.live_bytes(256)
    lease = MemoryLease(1 << 20, live_kv_bytes=2 * live_bytes, stored_kv_bytes=0)
    with Driver(tiny, spec=make_spec(tiny, lease=lease)) as engine:
        engine.submit("n", prompt(100, 1), WARM, max_tokens=20, choices=3)
        engine.steps_until("n", 2)
        engine.submit("waits", prompt(100, 2), max_tokens=2)
        assert engine.call(engine.engine.stats).waiting_rows == 2
        deltas = engine.call(lambda: engine.engine.reset("It broke."))
        engine.read(deltas)
        assert [delta.open_choices for delta in deltas] == [2, 1, 0]
        assert {delta.finish for delta in deltas} == {FinishReason.ERROR}
        assert engine.run()["waits"].finish is FinishReason.LENGTH


def test_a_prefill_that_fails_ends_all_choices(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Driver(tiny) as engine:
        engine.submit("n", prompt(30, 1), WARM, choices=3)
        monkeypatch.setattr("node.engine.decoding.batches.DecodeBatch.join", broken)
        with pytest.raises(RuntimeError):
            engine.run()
        deltas = engine.call(lambda: engine.engine.reset("It broke."))
        assert sorted(delta.choice for delta in deltas) == [0, 1, 2]
        assert deltas[-1].is_last


def broken(*given: object) -> None:
    raise RuntimeError


def test_greedy_choices_generate_the_same(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("n", prompt(30, 1), GREEDY, max_tokens=8, choices=2)
        engine.run()
        for choice in range(2):
            engine.assert_greedy(place("n", choice), prompt(30, 1), 8)


def test_seeds_of_both_signs_are_different_seeds(tiny: Path) -> None:
    with Driver(tiny) as engine:
        sampling = SamplingParams(temperature=1.0, seed=-1)
        engine.submit("n", prompt(30, 1), sampling, max_tokens=8, choices=3)
        engine.run()
        assert len({tuple(output) for output in choices(engine, "n", 3)}) == 3
