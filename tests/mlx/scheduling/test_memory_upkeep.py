"""The bytes that the engine reports are what MLX reports, and memory keeps within its lease."""

import gc
import random
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from node.engine.model.device import Device
from node.engine.model.load import LoadedModel
from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import EngineStats, MemoryLease, Refused
from node.protocol.messages import FinishReason
from tests.mlx.driver import GREEDY, Driver, make_spec, prompt
from tests.mlx.kinds import make_kind
from tests.mlx.tiny import CONTEXT_TOKENS

pytestmark = pytest.mark.mlx

REQUESTS = 2_000
"""With these tolerances a request that leaves 15 bytes is found."""
STORED_BYTES = 2 << 20
SURPLUS_BYTES = 1 << 15
"""Bytes that the next pass would evict."""


@pytest.fixture(autouse=True)
def _no_free_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that MLX takes from its free ones may be larger, by up to two pages, than what is
    kept in it: here it has none, so that its count can be compared with ours."""
    monkeypatch.setattr(Device, "_keep_buffers", lambda _device: mx.set_cache_limit(0))


class Churn:
    """Random requests with shared beginnings, some of them cancelled in some phase."""

    def __init__(self, engine: Driver, seed: int) -> None:
        self.engine = engine.engine
        self.random = random.Random(seed)
        self.stems = [prompt(length, length) for length in (20, 60, 150, 300)]
        self.open: list[str] = []
        self.count = 0

    def run(self, requests: int, *, leave_open: int) -> None:
        until = self.count + requests
        while self.count < until or len(self.open) > leave_open:
            while self.count < until and len(self.open) < 24:
                self._submit()
            if self.open and self.random.random() < 0.1:
                self.engine.cancel(self.open.pop(self.random.randrange(len(self.open))))
            for delta in self.engine.step():
                if delta.finish is not None:
                    self.open.remove(delta.uid)

    def _submit(self) -> None:
        stem = self.random.choice(self.stems)
        cut = self.random.randrange(10, len(stem) + 1, 10)
        tokens = (*stem[:cut], *(self.random.randrange(3, 400) for _ in range(5)))
        uid = f"{self.count}"
        self.count += 1
        self.open.append(uid)
        self.engine.submit(
            GenerateRequest(
                uid,
                tokens,
                max_tokens=self.random.randrange(1, 5),
                sampling=SamplingParams(temperature=0.0),
                boundaries=tuple(sorted({max(1, cut // 2), cut})),
                reusable_tokens=self.random.choice((None, cut)),
            )
        )


def reported_bytes(stats: EngineStats) -> int:
    return stats.live_kv_bytes + stats.stored_kv_bytes


def active() -> int:
    # Networks of earlier tests are rings of objects.
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


def settled(engine: Driver) -> int:
    """The same once what the next pass would compute of the caches has been computed."""
    for place in engine.engine._running.places():
        mx.eval([cache.state for cache in place._caches])
    return active()


def test_after_many_requests_the_counters_equal_what_mlx_reports(tiny: Path) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=64 << 20, stored_kv_bytes=STORED_BYTES)
    with Driver(tiny, spec=make_spec(tiny, max_rows=16, lease=lease)) as engine:
        start = engine.call(active)
        churn = Churn(engine, 1)
        engine.call(lambda: churn.run(REQUESTS, leave_open=10), timeout_s=300)
        stats = engine.call(engine.engine.stats)
        assert stats.decoding_rows > 0 and stats.stored_kv_bytes > STORED_BYTES // 2
        assert stats.stored_kv_bytes <= STORED_BYTES
        assert engine.call(lambda: settled(engine)) - start == pytest.approx(
            reported_bytes(stats), rel=0.01
        )
        engine.call(lambda: [engine.engine.cancel(uid) for uid in churn.open])
        engine.call(engine.engine.clear_cache)
        stats = engine.call(engine.engine.stats)
        assert (reported_bytes(stats), stats.entries) == (0, 0)
        assert engine.call(active) == pytest.approx(start, rel=0.005)


def test_every_kind_of_model_counts_its_bytes(kind: Path) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=64 << 20, stored_kv_bytes=STORED_BYTES)
    with Driver(kind, spec=make_spec(kind, max_rows=8, lease=lease)) as engine:
        start = engine.call(active)
        churn = Churn(engine, 2)
        engine.call(lambda: churn.run(60, leave_open=6))
        stats = engine.call(engine.engine.stats)
        assert stats.stored_kv_bytes <= STORED_BYTES
        # A recurrent state or window that both a sequence and an entry hold is counted with both.
        both = engine.call(lambda: settled(engine)) - start
        assert reported_bytes(stats) - stats.live_kv_bytes <= both * 1.01
        assert both <= reported_bytes(stats) * 1.05 + SURPLUS_BYTES
        engine.call(lambda: [engine.engine.cancel(uid) for uid in churn.open])
        stats = engine.call(engine.engine.stats)
        assert stats.live_kv_bytes == 0 and stats.stored_kv_bytes > 0
        assert engine.call(active) - start == pytest.approx(stats.stored_kv_bytes, rel=0.01)


def test_a_smaller_lease_evicts_at_once(tiny: Path) -> None:
    with Driver(tiny) as engine:
        start = engine.call(active)
        churn = Churn(engine, 3)
        engine.call(lambda: churn.run(200, leave_open=0))
        stored = engine.call(engine.engine.stats).stored_kv_bytes
        smaller = MemoryLease(1 << 20, live_kv_bytes=1 << 20, stored_kv_bytes=stored // 3)
        engine.call(lambda: engine.engine.set_lease(smaller))
        stats = engine.call(engine.engine.stats)
        assert stored // 6 < stats.stored_kv_bytes <= stored // 3
        assert stats.lease == smaller
        assert engine.call(active) - start <= stored // 3 * 1.05


SAMPLING = (
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.3),
    GREEDY,
)


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_sequences_that_outgrow_the_lease_are_preempted_and_generate_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two sequences of 100 tokens and such an answer take a step of the cache each; then they grow.
    monkeypatch.setattr("node.engine.decoding.row.USUAL_OUTPUT_TOKENS", 100)
    folder = make_kind(name, tmp_path / name)
    prompts = {f"{number}": prompt(100, number) for number in range(3)}
    with Driver(folder) as engine:
        live_bytes = engine.engine._layout.live_bytes
        room_bytes, longest = 2 * live_bytes(256), engine.engine._plan.longest_tokens
        engine.engine._plan.lease = MemoryLease(1 << 20, room_bytes, 0)
        limit = longest(CONTEXT_TOKENS) - 100
    lease = MemoryLease(1 << 20, live_kv_bytes=room_bytes, stored_kv_bytes=0)
    with Driver(folder, spec=make_spec(folder, lease=lease)) as engine:
        for sampling, (uid, tokens) in zip(SAMPLING, prompts.items(), strict=True):
            engine.submit(uid, tokens, sampling, max_tokens=None)
        together = 0
        rows = engine.rows
        while any(rows[uid].finish is None and len(engine.outputs[uid]) < 200 for uid in rows):
            engine.step()
            together = max(together, len(engine.engine._running.rows()))
        outputs = {uid: list(tokens) for uid, tokens in engine.outputs.items()}
        assert together == 2
        assert max(len(tokens) for tokens in outputs.values()) <= limit
        assert sum(len(tokens) > 156 for tokens in outputs.values()) >= 2, "they outgrew it"
    with Driver(folder) as engine:
        for number, (uid, tokens) in enumerate(prompts.items()):
            engine.submit(uid, tokens, SAMPLING[number], max_tokens=len(outputs[uid]))
            engine.run()
            engine.assert_alike(tokens, engine.outputs[uid], outputs[uid], SAMPLING[number])


def endless(model: LoadedModel) -> LoadedModel:
    """The same model, whose answers have no end of their own."""
    return replace(model, end_tokens=frozenset())


def test_a_sequence_alone_ends_where_a_lease_that_shrank_is_full(tiny: Path) -> None:
    with Driver(tiny, change=endless) as engine:
        engine.submit("a", prompt(100, 1), max_tokens=None)
        engine.steps_until("a", 20)
        smaller = MemoryLease(1 << 20, live_kv_bytes=2 * 256 * 512, stored_kv_bytes=0)
        engine.call(lambda: engine.engine.set_lease(smaller))
        row = engine.run()["a"]
        assert (row.finish, row.token_count) == (FinishReason.LENGTH, 512 - 100)
        refused = engine.submit("b", prompt(600, 2))
        assert isinstance(refused, Refused)


def test_a_waiting_prompt_that_does_not_fit_a_smaller_lease_ends_with_an_error(
    tiny: Path,
) -> None:
    with Driver(tiny, spec=make_spec(tiny, max_rows=1)) as engine:
        engine.submit("a", prompt(100, 1), max_tokens=4)
        engine.step()
        engine.submit("b", prompt(600, 2))
        smaller = MemoryLease(1 << 20, live_kv_bytes=2 * 256 * 512, stored_kv_bytes=0)
        engine.call(lambda: engine.engine.set_lease(smaller))
        rows = engine.run()
        assert rows["a"].finish is not None and rows["b"].finish is FinishReason.ERROR
        assert rows["b"].error is not None and "--memory-limit" in rows["b"].error
