"""Nodes that sleep are woken, and how long that takes is learned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import msgspec
import pytest
import pytest_asyncio

from registry.records import NodeRecord
from router.fleet import waker as module
from router.fleet.fleet import Fleet
from router.fleet.waker import REST_S, USUAL_S, Waker
from router.waking import LEAST_S, Waking
from tests.fakes import FakeClock
from tests.router.conftest import node_record, node_status

MAC = "a0:b1:c2:d3:e4:f5"
WAIT_S = 10.0


class World:
    """A fleet with one node, a clock, and the packets that were sent."""

    def __init__(self) -> None:
        self.clock = FakeClock(100.0)
        self.fleet = Fleet(clock=self.clock)
        self.sent: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.first = asyncio.Event()
        self.fails = False
        self.waker = Waker(self.fleet, self._send, self.clock)
        self._loop = asyncio.get_running_loop()

    def _send(self, macs: Sequence[str], addresses: Sequence[str]) -> None:
        self.sent.append((tuple(macs), tuple(addresses)))
        self._loop.call_soon_threadsafe(self.first.set)
        if self.fails:
            raise OSError(51, "Network is unreachable")

    def add(self, record: NodeRecord, *macs: str) -> str:
        """Adds a node that has reported these addresses and is lost since."""
        self.fleet.add(record)
        self.waker.follow(record)
        self.appear(record.id, *macs)
        self.fleet.lost(record.id, "Silence.", silent=True)
        return record.id

    def appear(self, node_id: str, *macs: str) -> None:
        self.fleet.on_status(node_id, msgspec.structs.replace(node_status(), macs=macs))

    def waking(self, node_id: str) -> Waking | None:
        view = self.fleet.node(node_id)
        assert view is not None
        return view.waking

    async def until_idle(self, node_id: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.waker.is_waking(node_id):
                await asyncio.sleep(0)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.waker.close()


RECORD = replace(node_record("https://192.168.1.7:8801"), wakes=True)


async def test_requests_may_wake_a_node_whose_address_is_known(world: World) -> None:
    node_id = world.add(RECORD, MAC)
    assert world.waker.macs(node_id) == (MAC,)
    assert world.waking(node_id) == Waking(USUAL_S)


async def test_they_may_not_without_an_address_or_an_admin_s_word(world: World) -> None:
    node_id = world.add(RECORD)
    assert world.waking(node_id) is None and not world.waker.wake(node_id)
    world.waker.follow(replace(RECORD, wakes=False, macs=(MAC,)))
    assert world.waking(node_id) is None and world.waker.macs(node_id) == (MAC,)


async def test_an_address_that_an_admin_has_set_takes_the_place_of_others(world: World) -> None:
    node_id = world.add(replace(RECORD, wake_mac="a0:00:00:00:00:01"), MAC)
    assert world.waker.macs(node_id) == ("a0:00:00:00:00:01",)


async def test_packets_are_sent_until_it_responds_and_the_time_is_learned(world: World) -> None:
    node_id = world.add(RECORD, MAC)
    assert world.waker.wake(node_id) and world.waker.wake(node_id)
    assert world.waking(node_id) == Waking(USUAL_S, 100.0)
    async with asyncio.timeout(WAIT_S):
        await world.first.wait()
    world.clock.now_s += 10.0
    world.appear(node_id, MAC)
    await world.until_idle(node_id)
    expected = ((MAC,), ("255.255.255.255", "192.168.1.255", "192.168.1.7"))
    assert world.sent == [expected], "a second request for it sends nothing of its own"
    assert world.waking(node_id) == Waking(USUAL_S + 0.3 * (10.0 - USUAL_S))
    assert world.waker.wake(node_id) and not world.waker.is_waking(node_id), "it is awake"


async def test_one_that_does_not_respond_is_left_alone_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    monkeypatch.setattr(module, "MOST_S", 0.003)
    node_id = world.add(RECORD, MAC)
    world.waker.wake(node_id)
    await world.until_idle(node_id)
    assert len(world.sent) == 3 and world.waking(node_id) is None
    assert "could not be woken; no request tries it for 10 min" in caplog.text
    world.clock.now_s += REST_S
    world.fleet.lost(node_id, "Still silent.", silent=True)
    assert world.waking(node_id) == Waking(USUAL_S)


async def test_an_admin_s_word_ends_that(world: World) -> None:
    world.fails = True
    node_id = world.add(RECORD, MAC)
    world.waker.wake(node_id)
    await world.until_idle(node_id)
    assert world.waking(node_id) is None
    world.waker.follow(RECORD)
    assert world.waking(node_id) == Waking(USUAL_S)


async def test_a_network_that_sends_nothing_is_named_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fails = True
    node_id = world.add(RECORD, MAC)
    world.waker.wake(node_id)
    await world.until_idle(node_id)
    assert len(world.sent) == 1
    assert "node a cannot be woken: [Errno 51] Network is unreachable" in caplog.text


async def test_a_node_that_is_removed_meanwhile_is_forgotten(world: World) -> None:
    node_id = world.add(RECORD, MAC)
    world.waker.wake(node_id)
    world.waker.forget(node_id)
    world.fleet.remove(node_id)
    assert world.waker.macs(node_id) == () and not world.waker.wake(node_id)


def test_less_is_left_of_a_waking_that_goes_on() -> None:
    assert Waking(20.0).rest_s(50.0) == 20.0
    assert Waking(20.0, 45.0).rest_s(50.0) == 15.0
    assert Waking(20.0, 1.0).rest_s(50.0) == LEAST_S
