"""KV that is restored from disk, or was kept quantized, and the answers it gives."""

from pathlib import Path

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from node.engine import stored_cap
from node.engine.base import LoadError
from node.ipc.messages import CacheEventKind, DiskCache, EngineSpec, Pressure
from tests.mlx.driver import Driver, make_spec, prompt
from tests.mlx.kinds import make_kind
from tests.mlx.likeness import NEAR_QUANTISED
from tests.node.engine.cache.fake_parts import evict

pytestmark = pytest.mark.mlx

ANSWER_TOKENS = 8
BOUNDARIES = (40, 130, 260)
BASE = prompt(300, 1)
NEXT = BASE[:260] + prompt(25, 2)


def spec_of(folder: Path, disk: Path) -> EngineSpec:
    return make_spec(folder, disk=DiskCache(str(disk), max_bytes=1 << 30))


def ask(engine: Driver, uid: str, tokens: tuple[int, ...]) -> int:
    """Runs the prompt, compares the answer with the bare model's; its cached tokens."""
    engine.submit(uid, tokens, max_tokens=ANSWER_TOKENS, boundaries=BOUNDARIES)
    engine.run()
    engine.assert_greedy(uid, tokens, ANSWER_TOKENS)
    usage = engine.rows[uid].usage
    assert usage is not None
    return usage.cached_tokens


def spill(engine: Driver) -> None:
    """Brings everything that is stored out of memory, to disk."""

    def run() -> None:
        reuse = engine.engine._reuse
        assert reuse.tier is not None
        reuse.cache.flush()
        reuse.tier.flush(30)
        reuse.cache.poll()
        evict(reuse.cache, 1 << 40)

    engine.call(run)
    assert engine.call(engine.engine.stats).stored_kv_bytes == 0


def test_memory_disk_and_a_cold_run_generate_the_same(kind: Path, tmp_path: Path) -> None:
    with Driver(kind, spec=spec_of(kind, tmp_path)) as engine:
        assert ask(engine, "cold", BASE) == 0
        in_memory = ask(engine, "memory", NEXT)
        assert in_memory == 260
        engine.call(engine.engine.take_cache_events)
        spill(engine)
        assert ask(engine, "disk", NEXT[:-1] + (9,)) >= in_memory
        kinds = {event.kind for event in engine.call(engine.engine.take_cache_events)}
        assert {CacheEventKind.SPILLED, CacheEventKind.PROMOTED} <= kinds


def test_what_is_on_disk_survives_a_restart(kind: Path, tmp_path: Path) -> None:
    with Driver(kind, spec=spec_of(kind, tmp_path)) as engine:
        ask(engine, "a", BASE)
    with Driver(kind, spec=spec_of(kind, tmp_path)) as engine:
        assert engine.call(engine.engine.stats).disk_kv_bytes > 0
        assert ask(engine, "b", NEXT) == 260


def test_sequences_that_arrive_together_after_a_restart_all_take_theirs_from_disk(
    tiny: Path, tmp_path: Path
) -> None:
    prompts = {f"{number}": prompt(400, 100 + number) for number in range(5)}
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=2)
        engine.run()
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=2)
        rows = engine.run()
        cached = [row.usage.cached_tokens for row in rows.values() if row.usage is not None]
        assert cached == [399] * 5


def test_another_model_does_not_meet_the_kv_of_this_one(tmp_path: Path) -> None:
    disk = tmp_path / "kv"
    llama, other = make_kind("llama", tmp_path / "a"), make_kind("qwen3_moe", tmp_path / "b")
    with Driver(llama, spec=spec_of(llama, disk)) as engine:
        ask(engine, "a", BASE)
    with Driver(other, spec=spec_of(other, disk)) as engine:
        assert ask(engine, "b", BASE) == 0
    changed = msgspec.structs.replace(spec_of(llama, disk), kv_cache_bits=8)
    with Driver(llama, spec=changed) as engine:
        engine.submit("c", BASE, max_tokens=1)
        usage = engine.run()["c"].usage
        assert usage is not None and usage.cached_tokens == 0
    with Driver(llama, spec=spec_of(llama, disk)) as engine:
        assert ask(engine, "d", BASE) == 299


def test_a_damaged_file_costs_a_prefill_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        ask(engine, "a", BASE)
    (file,) = sorted(tmp_path.rglob("*.safetensors"))[:1]
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        assert ask(engine, "b", BASE) == 0
        assert ask(engine, "c", BASE) == 299
        assert list(tmp_path.rglob("quarantine/*"))


def test_cleared_kv_is_gone_from_disk(tiny: Path, tmp_path: Path) -> None:
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        ask(engine, "a", BASE)
        spill(engine)
        engine.call(engine.engine.clear_cache)
        stats = engine.call(engine.engine.stats)
        assert (stats.entries, stats.disk_kv_bytes) == (0, 0)
        assert not list(tmp_path.rglob("*.safetensors"))
        assert ask(engine, "b", BASE) == 0


def test_a_second_engine_of_the_model_runs_without_the_disk(tiny: Path, tmp_path: Path) -> None:
    with Driver(tiny, spec=spec_of(tiny, tmp_path)):
        pass  # Its fingerprint is known from now on.
    with (
        Driver(tiny, spec=spec_of(tiny, tmp_path)) as first,
        Driver(tiny, spec=spec_of(tiny, tmp_path)) as second,
    ):
        ask(first, "a", BASE)
        assert ask(second, "a", BASE) == 0
        assert second.engine._reuse.tier is None


# --- quantized KV ---------------------------------------------------------------------------


def agreement(engine: Driver, tokens: tuple[int, ...], answer: list[int]) -> float:
    """Share of the answer's tokens that the model picks too when it continues from what is stored
    for the prompt, given the answer up to there."""

    def run() -> float:
        reuse, model = engine.engine._reuse, engine.engine._model
        row = engine.row("probe")
        engine.engine._queue.remove(row)
        caches = reuse.restore(row)
        assert row.done_tokens == len(tokens) - 1
        logits = model.network(mx.array([[tokens[-1], *answer[:-1]]]), cache=caches)
        same = mx.argmax(logits[0], axis=-1) == mx.array(answer)
        return float(np.mean(np.array(same)))

    engine.submit("probe", tokens)
    del engine.rows["probe"]
    return engine.call(run)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_entries_generate_nearly_the_same(smollm2: Path, bits: int) -> None:
    texts = (
        "The capital of France is Paris. The capital of Italy is",
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
        "Once upon a time there was a small ship that left the harbour at dawn, and",
        "1, 2, 3, 4, 5, 6, 7,",
    )
    with Driver(smollm2, spec=make_spec(smollm2, kv_cache_bits=bits)) as engine:
        shares = []
        for number, text in enumerate(texts):
            tokens = engine.ids(text)
            engine.submit(f"{number}", tokens, max_tokens=16)
            engine.run()
            shares.append(agreement(engine, tokens, engine.outputs[f"{number}"]))
    assert sum(shares) / len(shares) >= 0.95


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_entries_are_smaller_and_serve_every_cut(kind: Path, bits: int) -> None:
    with Driver(kind) as engine:
        ask(engine, "a", BASE)
        plain = engine.call(engine.engine.stats).stored_kv_bytes
        has_kv = engine.engine._layout.span_bytes_per_token > 0
    if not has_kv:
        with pytest.raises(LoadError, match="KV"):
            Driver(kind, spec=make_spec(kind, kv_cache_bits=bits))
        return
    with Driver(kind, spec=make_spec(kind, kv_cache_bits=bits)) as engine:
        for uid, tokens in (("a", BASE), ("b", NEXT)):
            engine.submit(uid, tokens, max_tokens=ANSWER_TOKENS, boundaries=BOUNDARIES)
            rows = engine.run()
        assert engine.call(engine.engine.stats).stored_kv_bytes < plain
        usage = rows["b"].usage
        assert usage is not None and usage.cached_tokens == 260
        # Computed, not restored.
        engine.assert_greedy("a", BASE, ANSWER_TOKENS)


@pytest.mark.parametrize("bits", [8, 4])
def test_live_quantized_sequences_generate_together_what_each_generates_alone(
    tmp_path: Path, bits: int
) -> None:
    folder = make_kind("llama", tmp_path / "llama")
    prompts = {f"{length}": prompt(length, length) for length in (1, 7, 33, 257)}
    alone = {}
    for uid, tokens in prompts.items():
        with Driver(folder, spec=make_spec(folder, kv_live_bits=bits)) as engine:
            engine.submit(uid, tokens, max_tokens=12)
            engine.run()
            alone[uid] = engine.outputs[uid]
    with Driver(folder, spec=make_spec(folder, kv_live_bits=bits)) as engine:
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=12)
        engine.run()
        for uid, tokens in prompts.items():
            engine.assert_alike(tokens, engine.outputs[uid], alone[uid], near=NEAR_QUANTISED)
        engine.submit("again", prompts["257"], max_tokens=12)
        assert engine.run()["again"].usage is not None
        # Stored as it was live, so nothing is lost.
        engine.assert_alike(
            prompts["257"], engine.outputs["again"], alone["257"], near=NEAR_QUANTISED
        )


def test_live_bits_are_refused_where_a_layer_cannot(kind: Path) -> None:
    plain = {"llama", "smollm3", "qwen3_moe"}
    if kind.name in plain:
        with Driver(kind, spec=make_spec(kind, kv_live_bits=8)) as engine:
            assert engine.engine._layout.span_bytes_per_token > 0
    else:
        with pytest.raises(LoadError, match=r"bit|quantiz"):
            Driver(kind, spec=make_spec(kind, kv_live_bits=8))


def test_salts_share_no_kv_in_work_in_memory_or_on_disk(tiny: Path, tmp_path: Path) -> None:
    def cached(engine: Driver, uids: dict[str, str]) -> list[int]:
        for uid, salt in uids.items():
            engine.submit(uid, BASE, max_tokens=ANSWER_TOKENS, salt=salt)
        engine.run()
        usages = [engine.rows[uid].usage for uid in uids]
        return [usage.cached_tokens for usage in usages if usage is not None]

    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        assert cached(engine, {"a": "one", "b": "two", "c": ""}) == [0, 0, 0]
        assert cached(engine, {"d": "one", "e": "three"}) == [len(BASE) - 1, 0]
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        assert cached(engine, {"f": "four"}) == [0]
        assert cached(engine, {"g": "two"}) == [len(BASE) - 1]


def test_while_memory_is_short_the_session_that_goes_on_stays_warm(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(tiny, spec=spec_of(tiny, tmp_path)) as engine:
        for number in range(6):
            ask(engine, f"{number}", prompt(300, 50 + number))
        before = engine.call(engine.engine.stats).stored_kv_bytes
        engine.call(lambda: engine.engine.set_pressure(Pressure.SOFT))
        cap = engine.call(engine.engine.stats).stored_cap_bytes
        assert cap == before * 3 // 4
        monkeypatch.setattr(stored_cap, "STEP_S", 0.0)
        turn, known = prompt(300, 55), 299
        for number in range(3):
            assert ask(engine, f"turn {number}", turn) == known
            known = len(turn) + len(engine.outputs[f"turn {number}"])
            turn += (*engine.outputs[f"turn {number}"], 7, 8, 9)
        # A step of the engine is one of the cap, and what is written is free after it.
        tier = engine.engine._reuse.tier
        assert tier is not None
        engine.call(lambda: tier.flush(30))
        engine.call(engine.engine.step)
        stats = engine.call(engine.engine.stats)
        session = len(turn) * engine.engine._layout.span_bytes_per_token
        assert stats.stored_kv_bytes <= (stats.stored_cap_bytes or 0) <= session
        # Others are restored from disk.
        assert ask(engine, "0 again", prompt(300, 50)) == 299
