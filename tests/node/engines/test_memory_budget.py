"""Leases of the memory limit."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engines import memory_budget as memory_module
from node.engines.memory_budget import Budget, Leases
from node.errors import DoesNotFit, EngineDied, LoadFailure
from node.ipc.messages import EngineStats, MemoryLease
from serving.units import GIB

WAIT_S = 30.0


def fixed(weight_bytes: int, live_bytes: int = 0) -> MemoryLease:
    return MemoryLease(weight_bytes, live_bytes, 0)


def stored(budget: Budget, keys: str) -> list[int]:
    return [budget.lease(key).stored_kv_bytes for key in keys]


def test_a_refusal_reports_by_how_much_and_changes_nothing() -> None:
    budget = Budget(10 * GIB)
    budget.admit("a", fixed(6 * GIB))
    with pytest.raises(DoesNotFit) as caught:
        budget.admit("b", fixed(4 * GIB, GIB))
    assert caught.value.message == (
        "b needs 5.0 GiB, but 4.0 GiB of the memory limit of 10.0 GiB are free: 1.0 GiB too few. "
        "Unload another model first, or raise --memory-limit."
    )
    assert budget.leased_bytes == 6 * GIB
    budget.release("a")
    budget.release("a")
    budget.admit("b", fixed(5 * GIB))
    assert (budget.leased_bytes, budget.room_bytes("a"), budget.room_bytes("b")) == (
        5 * GIB,
        5 * GIB,
        10 * GIB,
    )


def test_reports_when_a_model_can_never_fit() -> None:
    with pytest.raises(DoesNotFit, match="choose a smaller model"):
        Budget(GIB).admit("a", fixed(2 * GIB))


def test_shares_nine_tenths_of_what_is_left_as_stored_kv() -> None:
    budget = Budget(1000)
    budget.admit("a", fixed(100))
    assert stored(budget, "a") == [810]
    budget.admit("b", fixed(200, 100))
    assert stored(budget, "ab") == [270, 270]
    assert budget.lease("b") == MemoryLease(200, 100, 270)
    budget.release("a")
    assert stored(budget, "b") == [630]


def test_what_one_may_not_have_is_leased_to_the_others() -> None:
    budget = Budget(1000)
    for key, limit in (("a", 100), ("b", None), ("c", 0)):
        budget.admit(key, fixed(0), limit)
    assert stored(budget, "abc") == [100, 800, 0]
    assert budget.stored_bytes == 900


def test_weights_that_turn_out_larger_leave_less_to_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = Budget(1000)
    budget.admit("a", fixed(100))
    budget.correct("a", 500)
    assert budget.lease("a") == MemoryLease(500, 0, 450)
    assert caplog.messages == []
    budget.admit("b", fixed(100))
    budget.correct("a", 2000)
    assert stored(budget, "ab") == [0, 0]
    assert budget.excess_bytes == 1100
    assert len(caplog.messages) == 1 and "exceed the memory limit" in caplog.messages[0]


def test_pinned_kv_is_granted_for_good() -> None:
    budget = Budget(1000)
    budget.admit("a", fixed(100))
    assert budget.pin("a", 300)
    assert not budget.pin("a", 300)
    assert not budget.pin("nobody", 300)
    assert stored(budget, "a") == [300 + 540]
    assert (budget.leased_bytes, budget.fixed_bytes, budget.room_bytes("b")) == (400, 100, 600)
    with pytest.raises(DoesNotFit):
        budget.admit("b", fixed(601))
    budget.admit("b", fixed(600))
    assert stored(budget, "ab") == [300, 0]
    budget.admit("a", fixed(100), 310)
    budget.release("b")
    budget.pin("a", 300)
    assert stored(budget, "a") == [310], "a size that is set bounds both parts together"


async def pause(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class Engine:
    """A tenant whose answers can be delayed; what it occupies changes when it answers, or, where
    it `applies_at_once`, before."""

    def __init__(self, world: "World", lease: MemoryLease) -> None:
        self._world = world
        self.lease = lease
        self.requested = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.dead = False
        self.applies_at_once = False
        self.turns = 0
        """Iterations of the event loop that an answer takes."""

    async def set_lease(self, lease: MemoryLease) -> EngineStats:
        self.requested.set()
        if self.applies_at_once or lease.stored_kv_bytes > self.lease.stored_kv_bytes:
            self.lease = lease
        self._world.check()
        await self.may_answer.wait()
        await pause(self.turns)
        if self.dead:
            raise EngineDied
        self.lease = lease
        self._world.check()
        kv_bytes = lease.stored_kv_bytes
        return EngineStats(0, 0, kv_bytes, 0, 0, kv_bytes, 0, 0, 0, 0, 0, 0, 0, lease=lease)


class World:
    """A budget with engines, whose sum is checked after each change."""

    def __init__(self, total_bytes: int) -> None:
        self.budget = Budget(total_bytes)
        self.most_bytes = total_bytes
        self.leases = Leases(self.budget)
        self.engines: dict[str, Engine] = {}

    def check(self) -> None:
        total_bytes = sum(engine.lease.total_bytes for engine in self.engines.values())
        assert total_bytes <= self.most_bytes

    @property
    def stored(self) -> Mapping[str, int]:
        return {key: engine.lease.stored_kv_bytes for key, engine in self.engines.items()}

    async def load(self, key: str, weight_bytes: int) -> None:
        """Loads an engine as the supervisor does it."""
        self.budget.admit(key, fixed(weight_bytes))
        await self.leases.make_room()
        self.engines[key] = Engine(self, fixed(weight_bytes))
        self.leases.add(key, self.engines[key], fixed(weight_bytes))
        self.check()
        await self.leases.settle()

    async def unload(self, key: str) -> None:
        del self.engines[key]
        self.budget.release(key)
        self.leases.remove(key)
        await self.leases.settle()


async def test_a_second_load_waits_until_the_first_engine_has_returned_memory() -> None:
    world = World(1000)
    await world.load("a", 100)
    assert world.stored == {"a": 810}
    first = world.engines["a"]
    first.may_answer.clear()
    first.requested.clear()
    async with asyncio.timeout(WAIT_S):
        load = asyncio.create_task(world.load("b", 300))
        await first.requested.wait()
        assert "b" not in world.engines
        first.may_answer.set()
        await load
    assert world.stored == {"a": 270, "b": 270}
    await world.unload("a")
    assert world.stored == {"b": 630}


async def test_two_loads_at_once_and_an_unload_never_exceed_the_limit() -> None:
    world = World(1000)
    await world.load("a", 100)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(world.load("b", 200), world.load("c", 300))
        assert world.stored == {"a": 120, "b": 120, "c": 120}
        await asyncio.gather(world.unload("b"), world.load("d", 100))
    assert world.stored == {"a": 150, "c": 150, "d": 150}


async def test_a_lowered_limit_reaches_both_engines() -> None:
    world = World(1000)
    await world.load("a", 100)
    await world.load("b", 100)
    assert world.stored == {"a": 360, "b": 360}
    world.budget.total_bytes = 400
    await world.leases.make_room()
    world.most_bytes = 400
    await world.leases.settle()
    world.check()
    assert world.stored == {"a": 90, "b": 90}


async def test_an_engine_that_does_not_give_back_in_time_fails_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "GIVE_BACK_S", 0.01)
    world = World(1000)
    await world.load("a", 100)
    world.engines["a"].may_answer.clear()
    for _ in range(2):
        with pytest.raises(LoadFailure, match="a did not give back memory"):
            await world.load("b", 300)
    world.budget.release("b")
    world.engines["a"].may_answer.set()
    await world.leases.settle()
    assert world.stored == {"a": 810}


async def test_a_cut_that_timed_out_but_was_applied_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "GIVE_BACK_S", 0.01)
    world = World(1000)
    await world.load("a", 100)
    first = world.engines["a"]
    first.applies_at_once = True
    first.may_answer.clear()
    with pytest.raises(LoadFailure, match="a did not give back memory"):
        await world.load("b", 300)
    assert world.stored == {"a": 270}
    world.budget.release("b")
    first.may_answer.set()
    await world.leases.settle()
    assert world.stored == {"a": 810}


async def test_one_late_engine_does_not_keep_the_others_from_their_leases(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_module, "GIVE_BACK_S", 0.01)
    world = World(1000)
    for key in "abc":
        await world.load(key, 100)
    assert world.stored == {"a": 210, "b": 210, "c": 210}
    late = world.engines["a"]
    late.may_answer.clear()
    # The pinned KV of one leaves less for all, and another has more than before.
    world.budget.pin("b", 100)
    world.budget.admit("c", fixed(50))
    world.leases.settle_soon()
    world.leases.settle_soon()
    async with asyncio.timeout(WAIT_S):
        while not caplog.messages:
            await asyncio.sleep(0)
        assert world.stored["b"] == world.budget.lease("b").stored_kv_bytes > 210
        assert world.stored["c"] == world.budget.lease("c").stored_kv_bytes < 210
        assert world.stored["a"] == 210
        late.may_answer.set()
        while world.stored["a"] != world.budget.lease("a").stored_kv_bytes:
            await asyncio.sleep(0)
    await world.leases.close()
    assert caplog.messages == ["a did not adopt a new memory lease within 0 s."]


async def test_kv_that_is_pinned_while_a_load_waits_for_room_fails_it() -> None:
    world = World(1000)
    await world.load("a", 100)
    first = world.engines["a"]
    first.may_answer.clear()
    first.requested.clear()
    async with asyncio.timeout(WAIT_S):
        load = asyncio.create_task(world.load("b", 800))
        await first.requested.wait()
        world.budget.pin("a", 400)
        first.may_answer.set()
        with pytest.raises(LoadFailure, match="came to need more"):
            await load


async def test_an_engine_that_dies_meanwhile_has_given_everything_back() -> None:
    world = World(1000)
    await world.load("a", 100)
    first = world.engines["a"]
    first.dead = True
    del world.engines["a"]
    await world.load("b", 300)
    assert world.stored == {"b": 270}


@given(
    lives=st.lists(
        st.tuples(*[st.integers(0, 12)] * 3, st.integers(1, 400)), min_size=2, max_size=6
    )
)
def test_no_order_of_loads_and_unloads_exceeds_the_limit(
    lives: list[tuple[int, int, int, int]],
) -> None:
    world = World(1000)

    async def live(key: str, before: int, turns: int, during: int, weight_bytes: int) -> None:
        await pause(before)
        try:
            await world.load(key, weight_bytes)
        except DoesNotFit:
            return
        world.engines[key].turns = turns
        await pause(during)
        await world.unload(key)

    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(live(str(key), *each) for key, each in enumerate(lives)))

    asyncio.run(run())
    assert world.budget.leased_bytes == world.budget.stored_bytes == 0
