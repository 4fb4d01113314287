"""Tests what an idle engine computes before the first request arrives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.engine.decoding.chunking import IDLE_CHUNK_TOKENS
from node.engine.model.load import LoadedModel
from node.engine.scheduling.warmup import FIRST_TOKENS, next_tokens
from node.ipc.messages import EngineStats, MemoryLease
from tests.mlx.driver import Driver, make_spec, prompt
from tests.mlx.kinds import PADDING_BLIND

pytestmark = pytest.mark.mlx


@dataclass
class Timed:
    """A network whose passes take 0.1 s and 0.1 ms for each token, on a clock of its own."""

    network: Any
    passed: list[tuple[int, int]]
    """Rows and tokens of each pass."""
    now_s: float = 0.0
    fails: bool = False

    @property
    def layers(self) -> Any:
        return self.network.layers

    def monotonic(self) -> float:
        return self.now_s

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if self.fails:
            raise RuntimeError("it fell over")
        self.passed.append((tokens.shape[0], tokens.shape[1]))
        self.now_s += 0.1 + 1e-4 * tokens.size
        logits: mx.array = self.network(tokens, cache=cache)
        return logits


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadedModel], LoadedModel]:
    def change(model: LoadedModel) -> LoadedModel:
        network = Timed(model.network, [])
        monkeypatch.setattr("node.engine.scheduling.warmup.time", network)
        return replace(model, network=network)

    return change


def network_of(engine: Driver) -> Timed:
    network: Timed = engine.engine._model.network
    return network


def warm(engine: Driver) -> EngineStats:
    """Warms up to the end."""
    engine.call(engine.engine.warm_up)
    while engine.call(engine.engine.wait_s) == 0:
        engine.step()
    return engine.call(engine.engine.stats)


@pytest.mark.parametrize(
    ("tokens", "seconds", "most_tokens", "wanted"),
    [
        pytest.param(32, 0.01, 2048, 128, id="quick"),
        pytest.param(32, 9.0, 2048, 128, id="it compiled, and no idle chunk is shorter"),
        pytest.param(128, 0.12, 2048, 512, id="within the time of a chunk"),
        pytest.param(128, 0.13, 2048, None, id="beyond it"),
        pytest.param(512, 0.1, 1000, 1000, id="up to the longest"),
        pytest.param(1000, 0.1, 1000, None, id="the longest"),
    ],
)
def test_chunks_grow_while_they_take_no_longer_than_a_chunk_may(
    tokens: int, seconds: float, most_tokens: int, wanted: int | None
) -> None:
    assert next_tokens(tokens, seconds, most_tokens) == wanted


def test_the_speed_that_is_learned_is_that_of_real_chunks(
    tiny: Path, timed: Callable[[LoadedModel], LoadedModel]
) -> None:
    with Driver(tiny, change=timed) as engine:
        before = len(network_of(engine).passed)
        stats = warm(engine)
        passed = network_of(engine).passed[before:]
        # Of 2,048 tokens one was expected to take too long.
        assert passed[:4] == [(1, FIRST_TOKENS), (1, 128), (1, 512), (1, 512)]
        assert passed[4:8] == [(1, 1), (1, 1), (2, 1), (2, 1)]
    (rate,) = stats.prefill_rates
    assert rate.tokens_per_s == pytest.approx(512 / 0.1512)
    assert [each.rows for each in stats.decode_rates] == [1, 2]
    assert [each.step_s for each in stats.decode_rates] == pytest.approx([0.1001, 0.1002])
    assert stats.prefill_tokens == 0, "that is for what requests cost"


def test_chunks_fit_into_the_lease_and_the_scratch(tiny: Path) -> None:
    with Driver(tiny) as engine:
        live_bytes = engine.engine._layout.live_bytes(512)
    lease = MemoryLease(1 << 20, live_kv_bytes=live_bytes, stored_kv_bytes=0)
    passed: list[tuple[int, int]] = []

    def change(model: LoadedModel) -> LoadedModel:
        return replace(model, network=Timed(model.network, passed))

    for options in ({"lease": lease}, {"score_bytes_per_pair": 1, "prefill_scratch_bytes": 60_000}):
        with Driver(tiny, spec=make_spec(tiny, **options), change=change) as engine:
            passed.clear()
            warm(engine)
            assert IDLE_CHUNK_TOKENS < max(tokens for _, tokens in passed) < 256


def test_a_request_ends_the_warm_up_and_pays_for_nothing_of_it(
    tiny: Path, timed: Callable[[LoadedModel], LoadedModel]
) -> None:
    with Driver(tiny, change=timed) as engine:
        engine.call(engine.engine.warm_up)
        engine.step()
        before = len(network_of(engine).passed)
        engine.submit("a", prompt(50, 1), max_tokens=3)
        engine.run()
        passed = network_of(engine).passed[before:]
        assert passed[0] == (1, 49)
        assert set(passed[1:]) == {(1, 1)}
        assert engine.call(engine.engine.wait_s) != 0


def test_a_warm_up_that_fails_is_over(
    tiny: Path, timed: Callable[[LoadedModel], LoadedModel]
) -> None:
    with Driver(tiny, change=timed) as engine:
        engine.call(engine.engine.warm_up)
        network_of(engine).fails = True
        with pytest.raises(RuntimeError, match="fell over"):
            engine.step()
        assert engine.call(engine.engine.wait_s) is None
        network_of(engine).fails = False
        engine.submit("a", prompt(5, 1), max_tokens=3)
        assert engine.run()["a"].token_count == 3


def test_every_kind_warms_up_and_then_generates_what_it_generates_cold(kind: Path) -> None:
    with Driver(kind) as engine:
        warm(engine)
        assert "supports_padding" in vars(engine.engine._layout)
        assert engine.engine._layout.supports_padding is (kind.name not in PADDING_BLIND)
        engine.submit("a", prompt(70, 1), max_tokens=5)
        engine.run()
        engine.assert_greedy("a", prompt(70, 1), 5)
