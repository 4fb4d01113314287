"""Predicted against actual cached tokens."""

import msgspec
import pytest

from router.coverage import Coverage
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.records.metrics import Metrics
from router.types import Lease, Verdict
from tests.router.conftest import FINISHED
from tests.router.fleet.test_prefix_index import CHAIN, Clock, entries, snapshot
from tests.router.records.test_metrics import figures

LABELS = '{model="m",node="node-a"}'


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.index = PrefixIndex(self.clock)
        self.metrics = Metrics(lambda node_id: f"node-{node_id}")
        self.predictions = Predictions(self.index, self.metrics)
        self.index.on_snapshot("a", snapshot(entries((1, 2, 3))))
        self.clock.now_s += 1

    def answered(
        self, predicted: int, actual: int, prompt: int = 1000, *, failed: bool = False
    ) -> None:
        now_s = self.clock.now_s
        lease = Lease("r", "a", "m", now_s, 1, "i1", predicted_tokens=predicted)
        usage = msgspec.structs.replace(FINISHED, prompt_tokens=prompt, cached_tokens=actual)
        self.predictions.on_verdict(Verdict(lease, now_s + 5, failed, usage), CHAIN)

    def read(self, name: str) -> float:
        return figures(self.metrics).get(f"mlx_fleet_{name}{LABELS}", 0.0)


@pytest.fixture
def world() -> World:
    return World()


def test_predicted_and_actual_tokens_are_counted(world: World) -> None:
    world.answered(300, 310)
    world.answered(300, 250)
    assert world.read("predicted_tokens_total") == 600
    assert world.read("cached_tokens_total") == 560
    assert world.read("prompt_tokens_total") == 2000
    assert world.read("over_predictions_total") == 1
    assert world.read("prediction_error_tokens_count") == 2


def test_an_entry_that_delivered_less_is_taken_back(world: World) -> None:
    world.answered(300, 150)
    assert world.index.coverage("a", CHAIN) == Coverage(3, 150, 150)


def test_an_entry_that_delivered_as_much_or_more_stays(world: World) -> None:
    world.answered(300, 300)
    world.answered(300, 900)
    assert world.index.coverage("a", CHAIN) == Coverage(3, 300, 300)


def test_the_last_token_of_a_prompt_is_computed_whatever_is_stored(world: World) -> None:
    world.answered(300, 299, prompt=300)
    assert world.read("over_predictions_total") == 0
    assert world.index.coverage("a", CHAIN) == Coverage(3, 300, 300)


def test_a_request_that_failed_shows_nothing_of_the_cache(world: World) -> None:
    world.answered(300, 0, failed=True)
    assert world.read("prompt_tokens_total") == 0
    assert world.index.coverage("a", CHAIN) == Coverage(3, 300, 300)


def test_without_accounts_or_a_chain_nothing_is_compared(world: World) -> None:
    lease = Lease("r", "a", "m", 0.0, 1, predicted_tokens=300)
    world.predictions.on_verdict(Verdict(lease, 5.0, failed=False), CHAIN)
    world.predictions.on_verdict(Verdict(lease, 5.0, failed=False, usage=FINISHED), None)
    assert world.read("prompt_tokens_total") == 0
