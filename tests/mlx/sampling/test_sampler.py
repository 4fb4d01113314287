"""Which tokens the sampler may pick, how often, and at what cost."""

import importlib.util
import sys
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from node.engine.sampling.sampler import BatchSampler, RowSampling
from node.ipc.generate import SamplingParams

pytestmark = pytest.mark.mlx

VOCAB_SIZE = 50
DRAWS = 4000
LOGITS = np.random.default_rng(1).normal(size=VOCAB_SIZE) * 2

Vector = np.ndarray[Any, np.dtype[np.float64]]


def sample(
    rows: list[RowSampling], steps: int = 1, logits: Vector = LOGITS
) -> list[tuple[int, ...]]:
    """The tokens of each step."""
    sampler, out = BatchSampler(rows, len(logits)), []
    # Logits as a model gives them: not normalized.
    batch = mx.array(np.tile(logits + 3.0, (len(rows), 1)).astype(np.float32))
    for _ in range(steps):
        tokens, logprobs = sampler.sample(batch)
        assert not logprobs
        assert (tokens.shape, tokens.dtype) == ((len(rows),), mx.uint32)
        out.append(tuple(int(token) for token in np.array(tokens)))
    return out


def reference(params: SamplingParams, logits: Vector = LOGITS) -> Vector:
    """The distribution that the settings define, from their definitions."""
    scaled = logits / params.temperature
    chances = np.exp(scaled - scaled.max())
    chances /= chances.sum()
    order = np.argsort(-chances)
    kept = order[: params.top_k] if 0 < params.top_k < len(order) else order
    ranked = chances[kept] / chances[kept].sum()
    nucleus = np.cumsum(ranked) - ranked < params.top_p
    kept = kept[nucleus & (ranked >= params.min_p * ranked[0])]
    out: Vector = np.zeros(len(chances))
    out[kept] = chances[kept] / chances[kept].sum()
    return out


CASES = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=1.7),
    SamplingParams(temperature=1.0, top_k=7),
    SamplingParams(temperature=1.0, top_k=VOCAB_SIZE),
    SamplingParams(temperature=1.0, top_k=-1),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.3, top_k=12, top_p=0.8, min_p=0.05),
]


@pytest.mark.parametrize("params", CASES, ids=str)
def test_tokens_are_drawn_as_often_as_the_settings_define(params: SamplingParams) -> None:
    rows = [RowSampling.of(SamplingParams(**{**fields(params), "seed": n})) for n in range(40)]
    drawn = Counter(token for step in sample(rows, DRAWS // 40) for token in step)
    expected = reference(params) * DRAWS
    assert set(drawn) <= set(np.flatnonzero(expected))
    likely = expected >= 5
    if likely.all() or params.top_k == 7:
        assert set(drawn) >= set(np.flatnonzero(likely))
    observed = np.array([drawn[token] for token in range(VOCAB_SIZE)], dtype=np.float64)
    chi = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    # About the 99.99th percentile of chi-square with that many degrees of freedom.
    freedom = int(likely.sum())
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 8


def fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_rows_of_all_kinds_keep_their_places() -> None:
    greedy = SamplingParams(temperature=0.0)
    mixed = [greedy, *(SamplingParams(**{**fields(p), "seed": 9}) for p in CASES), greedy]
    together = sample([RowSampling.of(params) for params in mixed], 30)
    for index, params in enumerate(mixed):
        alone = sample([RowSampling.of(params)], 30)
        assert [step[index] for step in together] == [step[0] for step in alone]


def test_the_likeliest_token_always_stays() -> None:
    for params in (
        SamplingParams(temperature=1.0, top_p=0.0),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1e-30),
    ):
        drawn = {step[0] for step in sample([RowSampling.of(params)], 20)}
        assert drawn == {int(LOGITS.argmax())}


def test_a_wide_vocabulary_is_ranked_by_partition() -> None:
    logits = np.random.default_rng(2).normal(size=5000)
    for params in (
        SamplingParams(temperature=3.0, top_k=3, seed=1),
        SamplingParams(temperature=3.0, top_k=3000, seed=1),
        SamplingParams(temperature=3.0, top_k=1000, top_p=0.01, seed=1),
    ):
        drawn = {step[0] for step in sample([RowSampling.of(params)], 300, logits)}
        allowed = set(np.flatnonzero(reference(params, logits)))
        assert drawn <= allowed
        assert len(drawn) >= min(3, len(allowed))


def test_the_largest_draw_picks_no_token_without_a_chance() -> None:
    class Highest(RowSampling):
        def draw(self) -> float:
            return ((1 << 24) - 2) / (1 << 24)

    logits = np.where(np.arange(VOCAB_SIZE) < 40, LOGITS, -np.inf)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=45)):
        row = Highest(params, RowSampling.of(params).source)
        assert all(step[0] < 40 for step in sample([row], 3, logits))


def test_a_new_value_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(mx, "compile", refuse)
    # A copy of the module, so that what it compiles when it is imported is refused as well.
    origin = sys.modules[RowSampling.__module__].__file__
    assert origin is not None
    spec = importlib.util.spec_from_file_location("sampler_without_compile", origin)
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    # Where its dataclasses look for their types.
    monkeypatch.setitem(sys.modules, spec.name, fresh)
    spec.loader.exec_module(fresh)
    for params in CASES:
        tokens, _ = fresh.BatchSampler([fresh.RowSampling.of(params)], VOCAB_SIZE).sample(
            mx.array(LOGITS[None].astype(np.float32))
        )
        assert tokens.shape == (1,)
