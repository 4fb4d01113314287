"""Tokens per second, from what nodes count."""

from __future__ import annotations

import pytest

from router.fleet.fleet import Fleet
from router.fleet.token_rates import TokenRates, TokensPerS
from tests.fakes import FakeClock
from tests.router.conftest import model_status, node_record, node_status


class World:
    def __init__(self) -> None:
        self.clock = FakeClock(100.0)
        self.fleet = Fleet(clock=self.clock)
        self.fleet.add(node_record("http://a"))
        self.rates = TokenRates(self.fleet)

    def hear(
        self, prefilled: int | None, decoded: int | None, *, after_s: float = 2.0, load: int = 1
    ) -> None:
        self.clock.advance(after_s)
        model = model_status(
            "m", prefilled_tokens=prefilled, decoded_tokens=decoded, generation=load
        )
        self.fleet.on_status("id-a", node_status(model, node_id="id-a"))

    def now(self) -> TokensPerS | None:
        return self.rates.of("id-a", "m")


@pytest.fixture
def world() -> World:
    return World()


def test_a_rate_needs_two_statuses(world: World) -> None:
    assert world.now() is None
    world.hear(0, 0)
    assert world.now() is None
    world.hear(1000, 50)
    assert world.now() == TokensPerS(prefill=500.0, decode=25.0)


def test_it_is_that_of_the_last_seconds(world: World) -> None:
    for decoded in (0, 1000, 2000, 2000, 2000):
        world.hear(0, decoded)
    assert world.now() == TokensPerS(0.0, 0.0)


def test_statuses_between_heartbeats_do_not_shorten_it(world: World) -> None:
    world.hear(0, 0)
    world.hear(0, 100)
    world.hear(0, 100, after_s=0.01)
    world.hear(0, 100, after_s=0.01)
    rates = world.now()
    assert rates is not None and rates.decode == pytest.approx(100 / 2.02)


def test_a_new_load_begins_anew(world: World) -> None:
    world.hear(0, 500)
    world.hear(0, 5, load=2)
    assert world.now() is None
    world.hear(0, 25, load=2)
    assert world.now() == TokensPerS(0.0, 10.0)


def test_a_node_that_counts_none_or_is_lost_has_no_rate(world: World) -> None:
    world.hear(None, None)
    world.hear(None, None)
    assert world.now() is None
    world.hear(0, 0)
    world.hear(0, 10)
    assert world.now() is not None
    world.fleet.lost("id-a", "It went.")
    assert world.now() is None


def test_a_removed_node_is_forgotten(world: World) -> None:
    world.hear(0, 0)
    world.fleet.remove("id-a")
    assert world.rates.of("id-a", "m") is None
    assert not world.rates._seen and not world.rates._read_at_s


def test_counts_are_bounded_however_often_a_node_reports(world: World) -> None:
    for decoded in range(1000):
        world.hear(0, decoded, after_s=0.001)
    assert len(world.rates._seen["id-a"]["m"].counts) <= 32
