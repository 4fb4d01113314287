"""Tests an engine's reports of steps that take long."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.engine.model.load import LoadedModel
from node.engine.scheduling.step_costs import UNKNOWN_STEP_S
from tests.mlx.driver import Driver, make_spec, prompt

pytestmark = pytest.mark.mlx


class Slow:
    """A network whose passes take a second for each 100 tokens and each row, on its own clock."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.layers = network.layers
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.now_s += 0.01 * tokens.size + tokens.shape[0]
        logits: mx.array = self._network(tokens, cache=cache)
        return logits


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadedModel], LoadedModel]:
    def change(model: LoadedModel) -> LoadedModel:
        network = Slow(model.network)
        monkeypatch.setattr("node.engine.scheduling.step_costs.time", network)
        monkeypatch.setattr("node.engine.scheduling.step_runner.time", network)
        return replace(model, network=network)

    return change


def test_long_steps_are_reported_before_and_logged_after_they_are_done(
    tiny: Path, slow: Callable[[LoadedModel], LoadedModel], caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[float] = []
    spec = make_spec(tiny, prefill_chunk_tokens=200)
    with Driver(tiny, spec=spec, change=slow, on_long_step=reported.append) as engine:
        engine.submit("a", prompt(301, 1), max_tokens=9)
        with caplog.at_level(logging.WARNING, "node.engine.scheduling.step_costs"):
            engine.step()
            assert reported == [UNKNOWN_STEP_S]
            assert "A step took 2.3 s: prefill of 128 tokens of 1 prompts, behind 0 tokens." in (
                caplog.messages
            )
            engine.step()
            assert reported[1:] == [pytest.approx(128 * 2.28 / 128)]
            engine.step()
            assert reported[2:] == [], "44 tokens are left, of a second"
            engine.submit("b", prompt(2, 2), max_tokens=9)
            engine.steps_until("b", 4)
            reported.clear()
            engine.step()
            assert reported == [pytest.approx(2.02)]
        assert "A step took 2.0 s: a token of 2 rows, the longest of 305 tokens." in caplog.messages
