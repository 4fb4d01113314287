"""Loads and swaps, as the router counts them from what nodes report."""

from __future__ import annotations

import logging

import pytest

from node.protocol.messages import ModelState, ModelStatus
from router.fleet.fleet import Fleet
from router.fleet.model_gauges import ModelGauges
from router.records.metrics import Metrics
from tests.router.conftest import model_status, node_record, node_status


class World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.metrics = Metrics(lambda node_id: node_id.removeprefix("id-"))
        self.fleet.add(node_record("http://a"))
        ModelGauges(self.fleet, self.metrics)

    def hear(self, *models: ModelStatus, instance_id: str = "i1") -> None:
        status = node_status(*models, node_id="id-a", instance_id=instance_id)
        self.fleet.on_status("id-a", status)

    def figures(self, name: str) -> list[str]:
        start = f"mlx_fleet_{name}{{"
        lines = self.metrics.text().decode().splitlines()
        return [line.removeprefix(start) for line in lines if line.startswith(start)]


def ready(name: str, generation: int, load_s: float = 2.0) -> ModelStatus:
    return model_status(name, generation=generation, load_s=load_s)


def on_disk(name: str) -> ModelStatus:
    return model_status(name, state=ModelState.ON_DISK)


def test_a_load_is_counted_once_with_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    world.hear(on_disk("x"))
    for _ in range(2):
        world.hear(ready("x", 1))
    assert world.figures("load_seconds_sum") == ['model="x",node="a"} 2.0']
    assert world.figures("load_seconds_count") == ['model="x",node="a"} 1.0']
    assert world.figures("swaps_total") == []
    assert caplog.messages == ["node a has loaded x in 2.0 s"]


def test_what_was_loaded_before_is_not_counted() -> None:
    world = World()
    world.hear(ready("x", 3))
    world.hear(ready("x", 1), instance_id="i2")
    assert world.figures("load_seconds_count") == []


def test_a_load_for_which_another_model_left_is_a_swap() -> None:
    world = World()
    world.hear(ready("x", 1), on_disk("y"))
    world.hear(on_disk("x"), model_status("y", state=ModelState.LOADING))
    world.hear(on_disk("x"), ready("y", 2))
    world.hear(ready("x", 3), ready("y", 2))
    assert world.figures("swaps_total") == ['model="y",node="a"} 1.0']


def test_a_model_that_was_loaded_anew_is_another_load() -> None:
    world = World()
    world.hear(ready("x", 1))
    world.hear(ready("x", 2))
    assert world.figures("load_seconds_count") == ['model="x",node="a"} 1.0']


def test_states_are_shown_as_they_are_and_only_of_nodes_that_are_there() -> None:
    world = World()
    world.hear(ready("x", 1), on_disk("y"))
    world.fleet.set_stalled("id-a", frozenset("x"))
    assert world.figures("model_state") == [
        'model="x",node="a",state="stalled"} 1.0',
        'model="y",node="a",state="on_disk"} 1.0',
    ]
    assert world.figures("node_up") == ['node="a"} 1.0']
    world.fleet.lost("id-a", "Gone.")
    assert world.figures("model_state") == []
    assert world.figures("node_up") == ['node="a"} 0.0']


def test_a_server_of_others_loads_nothing_that_is_known() -> None:
    world = World()
    world.fleet.add(node_record("http://b", "b", kind="openai"))
    for generation in (1, 2):
        world.fleet.on_status("id-b", node_status(ready("x", generation), node_id="id-b"))
    assert world.figures("load_seconds_count") == []
