"""Tests that KV from the prefix cache generates the same as KV that is computed, for every kind of
model and at every cut, and that tokens counted as cached did not go through the model."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from node.engine.decoding.chunking import ChunkLimits
from node.engine.model.load import LoadedModel
from node.ipc.generate import GenerateRequest
from node.ipc.messages import CacheEventKind, MemoryLease, Pressure, Progress, Refused
from node.protocol.messages import FinishReason
from tests.mlx.driver import Driver, make_spec, prompt
from tests.node.engine.cache.fake_parts import evict

pytestmark = pytest.mark.mlx

ANSWER_TOKENS = 8
CHUNK_TOKENS = 64
BOUNDARIES = (40, 130, 260)
BASE = prompt(300, 1)


class Counting:
    """A network that counts the tokens that go through it."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        self.tokens += inputs.size
        logits: mx.array = self._network(inputs, cache=cache)
        return logits


class Counted(Driver):
    """An engine whose forward calls are counted."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.network: Any = None
        spec = make_spec(folder, prefill_chunk_tokens=CHUNK_TOKENS, **options)
        super().__init__(folder, spec=spec, change=self._count)

    def _count(self, model: LoadedModel) -> LoadedModel:
        self.network = Counting(model.network)
        return replace(model, network=self.network)

    def ask(self, uid: str, tokens: tuple[int, ...], **options: Any) -> int:
        """Runs the prompt alone and compares the answer with the bare model's; the tokens of the
        prompt that did not go through the forward."""
        before = self.network.tokens
        self.submit(uid, tokens, max_tokens=ANSWER_TOKENS, **options)
        self.run()
        usage = self.rows[uid].usage
        assert usage is not None
        # Each token of output is fed too.
        forwarded = self.network.tokens - before - len(self.outputs[uid])
        assert usage.cached_tokens == len(tokens) - forwarded
        self.assert_greedy(uid, tokens, ANSWER_TOKENS)
        return usage.cached_tokens

    @property
    def needs_snapshot(self) -> bool:
        return self.engine._layout.needs_snapshot


def cuts() -> list[int]:
    at = {1, 2, len(BASE) - 1, len(BASE)}
    for middle in (*BOUNDARIES, *range(CHUNK_TOKENS, len(BASE), CHUNK_TOKENS)):
        at |= {middle - 1, middle, middle + 1}
    return sorted(at)


def test_warm_equals_cold_at_every_cut(kind: Path) -> None:
    with Counted(kind) as engine:
        assert engine.ask("base", BASE, boundaries=BOUNDARIES) == 0
        for cut in cuts():
            other = BASE[:cut] + prompt(20, 1000 + cut)
            cached = engine.ask(f"cut {cut}", other, reusable_tokens=0)
            if not engine.needs_snapshot:
                assert cached == cut
            else:
                assert cached == max((at for at in BOUNDARIES if at <= cut), default=0)


def test_an_exact_repeat_computes_the_last_token_only(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.ask("first", BASE)
        # What a restored sequence writes must not reach what is stored.
        for number in range(3):
            assert engine.ask(f"again {number}", BASE) == len(BASE) - 1


def test_the_next_turn_continues_where_the_answer_ended(kind: Path) -> None:
    with Counted(kind) as engine:
        turn = BASE[:50]
        engine.ask("0", turn)
        for number in range(1, 5):
            before = len(turn) + len(engine.outputs[f"{number - 1}"])
            turn = turn + tuple(engine.outputs[f"{number - 1}"]) + prompt(15, 50 + number)
            assert engine.ask(f"{number}", turn) == before


def test_what_the_next_turn_drops_is_not_kept(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.ask("0", BASE, boundaries=(40, 290), reusable_tokens=290)
        assert known(engine, BASE) == 290
        next_turn = BASE[:290] + prompt(30, 3)
        assert engine.ask("1", next_turn, boundaries=(40, 290, 310)) == 290


def test_sessions_share_a_system_prompt(kind: Path) -> None:
    with Counted(kind) as engine:
        system = BASE[:130]
        for number in range(3):
            tokens = system + prompt(40, 10 + number) + (5, 6, 7)
            cached = engine.ask(f"{number}", tokens, boundaries=(130, 170))
            assert cached == (130 if number else 0)
        assert engine.ask("again", system + prompt(40, 11) + prompt(9, 4)) == 170


def test_a_longer_entry_serves_a_shorter_prompt(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.ask("long", BASE, boundaries=BOUNDARIES)
        cached = engine.ask("short", BASE[:200])
        assert cached == (130 if engine.needs_snapshot else 199)


def test_sequences_that_arrive_together_compute_a_shared_prefix_once(kind: Path) -> None:
    with Counted(kind) as engine:
        prompts = {f"{n}": BASE[:200] + prompt(20 + n, 70 + n) for n in range(4)}
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=ANSWER_TOKENS)
        engine.run()
        for uid, tokens in prompts.items():
            engine.assert_greedy(uid, tokens, ANSWER_TOKENS)
        cached = [row.usage.cached_tokens for row in engine.rows.values() if row.usage]
        assert cached == [0, 200, 200, 200]


def test_a_sequence_that_arrives_late_reuses_what_another_has_prefilled(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.submit("early", BASE, max_tokens=ANSWER_TOKENS, boundaries=BOUNDARIES)
        engine.step()
        engine.step()
        late = BASE[:250] + prompt(20, 5)
        engine.submit("late", late, max_tokens=ANSWER_TOKENS)
        engine.run()
        engine.assert_greedy("late", late, ANSWER_TOKENS)
        usage = engine.rows["late"].usage
        assert usage is not None and usage.cached_tokens == 250


def test_a_cancelled_prefill_is_kept(tiny: Path) -> None:
    with Counted(tiny) as engine:
        tokens = prompt(2000, 9)
        engine.submit("gone", tokens)
        for _ in range(8):
            engine.step()
        engine.cancel("gone")
        assert engine.ask("again", tokens) == 8 * CHUNK_TOKENS


def test_a_warm_prompt_is_prefilled_and_never_evicted(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.submit("warm", BASE[:131], max_tokens=0, warm=True, boundaries=(40,))
        row = engine.run()["warm"]
        assert (row.token_count, row.text, row.finish) == (0, "", FinishReason.STOP)
        engine.call(lambda: evict(engine.engine._reuse.cache, 1 << 30))
        assert engine.ask("a", BASE) == 130


def test_a_warm_prompt_inside_a_longer_entry_pins_no_more_than_itself(tiny: Path) -> None:
    with Counted(tiny) as engine:
        engine.ask("long", BASE)
        engine.submit("warm", BASE[:101], max_tokens=0, warm=True)
        engine.run()
        stats = engine.call(engine.engine.stats)
        assert stats.pinned_kv_bytes == 100 * engine.engine._layout.span_bytes_per_token
        engine.call(lambda: evict(engine.engine._reuse.cache, 1 << 30))
        assert engine.call(engine.engine.stats).stored_kv_bytes == stats.pinned_kv_bytes


def test_a_warm_prompt_that_there_is_no_room_for_is_an_error(tiny: Path) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=1 << 24, stored_kv_bytes=10_000)
    with Counted(tiny, lease=lease) as engine:
        engine.submit("warm", BASE, max_tokens=0, warm=True)
        row = engine.run()["warm"]
        assert row.finish is FinishReason.ERROR
        assert row.error is not None and "--kv-cache-size" in row.error


def test_a_dropped_answer_is_not_kept(tiny: Path) -> None:
    with Counted(tiny) as engine:
        engine.ask("a", BASE[:100])
        answer = tuple(engine.outputs["a"])
        assert known(engine, BASE[:100] + answer) > 100
        engine.ask("b", BASE[100:200], dropped_output=answer_start(engine, BASE[100:200]))
        answer = tuple(engine.outputs["b"])
        assert known(engine, BASE[100:200] + answer) == 99


def known(engine: Counted, tokens: tuple[int, ...]) -> int:
    """Returns the number of the tokens that the cache knows, usable or not."""
    return engine.engine._reuse.cache._index.walk(np.array(tokens, np.int32)).shared


def answer_start(engine: Counted, tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(engine.bare(tokens, 2))


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one(tiny: Path) -> None:
    with Counted(tiny) as engine:
        for uid, seed, length in (("running", 1, 3000), ("long", 2, 3600)):
            engine.submit(uid, prompt(length, seed), max_tokens=2)
            engine.step()
        engine.submit("short", prompt(3600, 2)[:100] + prompt(20, 3), max_tokens=2)
        steps = 0
        while engine.rows["short"].finish is None:
            engine.step()
            steps += 1
        # The long one is taken up to what is shared, out of turn, and no further.
        assert steps < 12
        usage = engine.rows["short"].usage
        assert usage is not None and usage.cached_tokens == 100


def test_chunks_beside_decoding_sequences_keep_the_stall_target(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Counted(tiny) as engine:
        engine.engine._steps.limits = ChunkLimits(chunk_tokens=2048, decode_stall_target_s=0.2)
        engine.submit("talks", BASE[:30], max_tokens=None)
        engine.steps_until("talks", 3)
        monkeypatch.setattr(engine.engine._costs.rates, "prefill_s_per_token", lambda depth: 1e-3)
        engine.submit("long", prompt(1500, 4), max_tokens=1)
        spoke: list[bool] = []
        while engine.rows["long"].finish is None:
            before, generated = engine.network.tokens, len(engine.outputs["talks"])
            engine.step()
            # 70 % of 200 ms, at a millisecond a token; then a decode step.
            assert engine.network.tokens - before <= 128
            spoke.append(len(engine.outputs["talks"]) > generated)
        assert len(spoke) > 20
        assert all(one or other for one, other in pairwise(spoke)), "no two chunks in a row"


def test_a_sequence_whose_restore_fails_reports_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Counted(tiny) as engine:
        for uid in "ab":
            engine.submit(uid, BASE[:40], max_tokens=2)
        monkeypatch.setattr(engine.engine._reuse, "restore", _fail)
        with pytest.raises(MemoryError):
            engine.step()
        engine.read(engine.call(lambda: engine.engine.reset("It failed.")))
        monkeypatch.undo()
        assert engine.rows["a"].error == "It failed."
        engine.run()
        assert engine.rows["b"].finish is FinishReason.LENGTH


def test_a_sequence_that_has_ended_reports_it_though_the_step_fails(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Counted(tiny) as engine:
        engine.submit("ends", BASE[:40], max_tokens=2)
        engine.submit("goes on", BASE[50:90], max_tokens=9)
        engine.steps_until("ends", 1)
        monkeypatch.setattr(engine.engine._upkeep, "after_step", _fail)
        with pytest.raises(MemoryError):
            engine.step()
        engine.read(engine.call(lambda: engine.engine.reset("It failed.")))
        assert engine.rows["ends"].finish is FinishReason.LENGTH
        assert engine.rows["goes on"].error == "It failed."


def _fail(*args: object, **options: object) -> None:
    raise MemoryError


def test_events_report_what_a_prompt_can_reuse(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.ask("a", BASE, boundaries=BOUNDARIES, reusable_tokens=290)
        events = engine.call(engine.engine.take_cache_events)
        usable = {event.usable_tokens for event in events if event.uid == "a"}
        assert max(usable) == (260 if engine.needs_snapshot else 290)
        assert all(event.kind is CacheEventKind.STORED for event in events)
        assert engine.call(engine.engine.take_cache_events) == ()


def test_nothing_is_stored_while_memory_is_very_short(tiny: Path) -> None:
    with Counted(tiny) as engine:
        engine.ask("a", BASE)
        engine.call(lambda: engine.engine.set_pressure(Pressure.HARD))
        stats = engine.call(engine.engine.stats)
        assert (stats.stored_kv_bytes, stats.stored_cap_bytes) == (0, 0)
        engine.ask("b", BASE)
        assert engine.ask("c", BASE) == 0
        each = engine.engine._layout.live_bytes(len(BASE) + 1)
        lease = MemoryLease(0, live_kv_bytes=8 * each - 8, stored_kv_bytes=1 << 28)
        engine.call(lambda: engine.engine.set_lease(lease))
        large = GenerateRequest("large", tokens=BASE, max_tokens=1)
        refused = engine.call(lambda: engine.engine.submit(large))
        assert isinstance(refused, Refused) and refused.is_short
        engine.call(lambda: engine.engine.set_pressure(Pressure.NONE))
        engine.ask("d", BASE)
        assert engine.ask("e", BASE) == len(BASE) - 1


def test_progress_of_a_long_prefill_is_reported(tiny: Path) -> None:
    with Counted(tiny) as engine:
        tokens = prompt(1500, 2)
        engine.submit("a", tokens)
        seen: list[Progress] = []
        while engine.rows["a"].token_count == 0:
            engine.step()
            seen += engine.call(engine.engine.take_progress)
        assert [event.done_tokens for event in seen][:2] == [64, 128]
        assert {event.total_tokens for event in seen} == {1499}
