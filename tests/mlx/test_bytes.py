"""What the engine says that it holds is what MLX reports, and memory keeps within its lease."""

import gc
import random
from pathlib import Path

import mlx.core as mx
import pytest

from node.types import EngineStats, GenerateRequest, MemoryLease, SamplingParams
from tests.mlx.driver import GREEDY, Driver, make_spec, prompt

pytestmark = pytest.mark.mlx

REQUESTS = 10_000
STORED_BYTES = 2 << 20


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


def held(stats: EngineStats) -> int:
    return stats.live_kv_bytes + stats.stored_kv_bytes


def active() -> int:
    # Networks of earlier tests are rings of objects.
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


def settled(engine: Driver) -> int:
    """The same once what the next pass would compute of the caches has been computed."""
    for place in engine.engine._places():
        mx.eval([cache.state for cache in place._caches])
    return active()


@pytest.mark.parametrize("requests", [REQUESTS])
def test_after_many_requests_the_counters_equal_what_mlx_reports(tiny: Path, requests: int) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=64 << 20, stored_kv_bytes=STORED_BYTES)
    with Driver(tiny, spec=make_spec(tiny, max_rows=16, lease=lease)) as engine:
        start = engine.call(active)
        churn = Churn(engine, 1)
        engine.call(lambda: churn.run(requests, leave_open=10), timeout_s=300)
        stats = engine.call(engine.engine.stats)
        assert stats.decoding_rows > 0 and stats.stored_kv_bytes > STORED_BYTES // 2
        assert stats.stored_kv_bytes <= STORED_BYTES
        assert engine.call(lambda: settled(engine)) - start == pytest.approx(held(stats), rel=0.05)
        engine.call(lambda: [engine.engine.cancel(uid) for uid in churn.open])
        engine.call(engine.engine.clear_cache)
        stats = engine.call(engine.engine.stats)
        assert (held(stats), stats.entries) == (0, 0)
        assert engine.call(active) == pytest.approx(start, rel=0.05)


def test_every_kind_of_model_counts_its_bytes(kind: Path) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=64 << 20, stored_kv_bytes=STORED_BYTES)
    with Driver(kind, spec=make_spec(kind, max_rows=8, lease=lease)) as engine:
        start = engine.call(active)
        churn = Churn(engine, 2)
        engine.call(lambda: churn.run(60, leave_open=6))
        stats = engine.call(engine.engine.stats)
        assert engine.call(lambda: settled(engine)) - start == pytest.approx(held(stats), rel=0.05)
        assert stats.stored_kv_bytes <= STORED_BYTES


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


def test_rows_that_outgrow_the_lease_give_way_and_say_the_same(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two rows of 100 tokens and such an answer take a step of the cache each; then they grow on.
    monkeypatch.setattr("node.engine.row.USUAL_ANSWER_TOKENS", 100)
    step_bytes = 256 * 512
    prompts = {f"{number}": prompt(100, number) for number in range(3)}
    lease = MemoryLease(1 << 20, live_kv_bytes=2 * step_bytes, stored_kv_bytes=0)
    with Driver(tiny, spec=make_spec(tiny, lease=lease)) as engine:
        for number, (uid, tokens) in enumerate(prompts.items()):
            sampling = GREEDY if number else SamplingParams(temperature=1.0, seed=5)
            engine.submit(uid, tokens, sampling, max_tokens=None)
        together = 0
        while any(row.finish is None for row in engine.rows.values()):
            engine.step()
            together = max(together, len(engine.engine._inside()))
            assert engine.call(engine.engine.stats).live_kv_bytes <= lease.live_kv_bytes
        outputs = {uid: list(tokens) for uid, tokens in engine.outputs.items()}
        usages = [row.usage for row in engine.rows.values()]
        assert together == 2
    with Driver(tiny) as engine:
        for number, (uid, tokens) in enumerate(prompts.items()):
            sampling = GREEDY if number else SamplingParams(temperature=1.0, seed=5)
            engine.submit(uid, tokens, sampling, max_tokens=len(outputs[uid]))
            engine.run()
            assert engine.outputs[uid] == outputs[uid]
            usage = usages[number]
            assert usage is not None and usage.prompt_tokens == 100
