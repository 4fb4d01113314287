"""When a request leaves a node that is there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from node.protocol.messages import ModelState
from router.errors import DeadlineExceeded, NodeFailed
from router.fleet.fleet import Fleet
from router.fleet.stall_watchdog import (
    Progress,
    StallLimits,
    StallWatchdog,
    WorkState,
    is_unresponsive,
    stalled,
    work_state_of,
)
from router.prices import Prices
from router.states import CORDONED
from router.types import Lease, NodeView
from tests.fakes import FakeClock
from tests.router.conftest import WAIT_S, lease, model_status, node_record, node_status, node_view

LIMITS = StallLimits(stall_s=10.0, load_s=60.0, first_token_s=100.0)


def view(instance_id: str = "i1", **model: Any) -> NodeView:
    seen = node_view("n")
    status = node_status(model_status("m", **model), instance_id=instance_id)
    return NodeView("n", "n", seen.kind, seen.url, status, True, None, 1.0)


def attempt(work: WorkState | None, *, paused: bool = False) -> Progress:
    return Progress(lease(), lambda: paused, progressed_s=0.0, work=work)


def work(**model: Any) -> WorkState | None:
    return work_state_of(view(**model), "m")


def test_a_loaded_model_without_a_token_is_left_in_time() -> None:
    each = attempt(work(work_tokens=5))
    assert not stalled(each, work(work_tokens=5), 9.9, LIMITS)
    assert stalled(each, work(work_tokens=5), 10.0, LIMITS)


@pytest.mark.parametrize("more", [{"work_tokens": 6}, {"generation": 2}, {"instance_id": "i2"}])
def test_work_for_anybody_is_progress(more: dict[str, Any]) -> None:
    each = attempt(work(work_tokens=5))
    now = work(**{"work_tokens": 5} | more)
    assert not stalled(each, now, 10.0, LIMITS)
    assert not stalled(each, now, 19.9, LIMITS)
    assert stalled(each, now, 20.0, LIMITS)


def test_what_arrives_of_its_answer_is_progress() -> None:
    each = attempt(work())
    each.has_data = True
    assert not stalled(each, work(), 50.0, LIMITS)
    assert not stalled(each, work(), 59.9, LIMITS)
    assert stalled(each, work(), 60.0, LIMITS)


def test_a_caller_that_takes_nothing_does_not_wedge_a_node() -> None:
    each = attempt(work(), paused=True)
    assert not stalled(each, work(), 50.0, LIMITS)


@pytest.mark.parametrize("state", [ModelState.LOADING, ModelState.ON_DISK])
def test_a_model_that_is_not_loaded_yet_has_its_own_limit(state: ModelState) -> None:
    loading = work(state=state)
    each = attempt(loading)
    assert not stalled(each, loading, 59.9, LIMITS)
    assert stalled(each, loading, 60.0, LIMITS)


def test_a_load_that_goes_on_takes_as_long_as_it_takes() -> None:
    each = attempt(work(state=ModelState.LOADING, progress=0.0))
    for tenth in range(1, 11):
        now = work(state=ModelState.LOADING, progress=tenth / 10)
        assert not stalled(each, now, 59.0 * tenth, LIMITS)
    ready = work()
    assert not stalled(each, ready, 600.0, LIMITS)
    assert stalled(each, ready, 610.0, LIMITS)


def test_a_server_that_reports_nothing_has_long_to_begin_and_then_little() -> None:
    each = attempt(None)
    assert not stalled(each, None, 99.9, LIMITS)
    each.has_data = True
    assert not stalled(each, None, 100.0, LIMITS)
    assert stalled(each, None, 110.0, LIMITS)
    assert stalled(attempt(None), None, 100.0, LIMITS)


def test_a_foreign_server_shows_no_sign() -> None:
    foreign = NodeView("n", "n", "openai", "http://x", node_status(), True, None, 1.0)
    assert work_state_of(foreign, "m") is None
    assert work_state_of(None, "m") is None
    assert work_state_of(view(), "other") is None


# --- a server of others that answers nothing at all ---

SILENT = NodeView("n", "n", "openai", "http://x", None, False, "Silent.", 1.0, silent_since_s=5.0)
OTHER = replace(view(), node_id="o", name="o")


def test_a_server_that_answers_nothing_is_left_for_another_node_after_a_stall() -> None:
    assert not is_unresponsive(lease(node_id="n"), (SILENT, OTHER), 14.9, LIMITS)
    assert is_unresponsive(lease(node_id="n"), (SILENT, OTHER), 15.0, LIMITS)
    each = attempt(None)
    assert not stalled(each, None, 15.0, LIMITS)
    each.is_unresponsive = True
    assert stalled(each, None, 15.0, LIMITS)


def test_a_request_has_a_whole_stall_though_its_server_was_silent_before() -> None:
    each = attempt(None)
    each.is_unresponsive, each.progressed_s = True, 10.0
    assert not stalled(each, None, 19.9, LIMITS)
    assert stalled(each, None, 20.0, LIMITS)


@pytest.mark.parametrize(
    "views",
    [
        (SILENT,),
        (replace(SILENT, silent_since_s=None), OTHER),
        (OTHER,),
        (SILENT, replace(OTHER, reachable=False)),
        (SILENT, replace(OTHER, state=CORDONED)),
        (SILENT, replace(OTHER, prices=Prices(1.0, 1.0))),
        (SILENT, replace(OTHER, status=node_status(model_status("x")))),
    ],
    ids=["alone", "reported", "removed", "lost", "cordoned", "paid", "without"],
)
def test_a_server_is_waited_for_where_it_reports_progress_or_no_other_takes_the_request(
    views: tuple[NodeView, ...],
) -> None:
    assert not is_unresponsive(lease(node_id="n"), views, 1000.0, LIMITS)


def test_a_request_that_was_sent_on_once_waits_for_a_silent_server() -> None:
    assert not is_unresponsive(lease(node_id="n", attempt=2), (SILENT, OTHER), 1000.0, LIMITS)


class World:
    def __init__(self) -> None:
        self.fleet, self.clock = Fleet(), FakeClock(0.0)
        self.fleet.add(node_record("http://x", "n", node_id="n"))
        self.hear()
        self.left: list[Lease] = []
        """Leases of requests that have left the node."""
        self.stalls = StallWatchdog(
            self.fleet, StallLimits(0.2, 0.2, 0.2), self.left.append, self.clock
        )

    def hear(self, **model: Any) -> None:
        self.fleet.on_status("n", node_status(model_status("m", **model), node_id="n"))

    @property
    def stalled(self) -> frozenset[str]:
        seen = self.fleet.node("n")
        assert seen is not None
        return seen.stalled

    async def leave(self) -> str:
        """A request on the node; why it was left."""
        with pytest.raises(NodeFailed) as left:
            async with asyncio.timeout(WAIT_S):
                with self.stalls.watch(lease(), lambda: False):
                    self.clock.advance(1.0)
                    await asyncio.get_running_loop().create_future()
        assert self.left == [lease()]
        return left.value.message


async def test_a_stalled_model_is_reported_until_it_makes_progress() -> None:
    world = World()
    assert await world.leave() == "The node n is connected and has computed no token for 0.2 s."
    assert world.stalled == {"m"}
    world.hear()
    assert world.stalled == {"m"}
    world.hear(work_tokens=1)
    assert world.stalled == frozenset()


async def test_new_limits_apply_to_requests_that_are_open() -> None:
    world = World()
    world.stalls.set_limits(StallLimits(900.0, 900.0, 900.0))
    with pytest.raises(NodeFailed, match="for 0.3 s"):
        async with asyncio.timeout(WAIT_S):
            with world.stalls.watch(lease(), lambda: False):
                world.clock.advance(1.0)
                world.stalls._check()
                world.stalls.set_limits(StallLimits(0.3, 900.0, 900.0))
                timer = world.stalls._timer
                assert timer is not None
                assert timer.when() < asyncio.get_running_loop().time() + 1.0
                await asyncio.get_running_loop().create_future()


async def test_a_load_that_stalls_is_no_wedge() -> None:
    world = World()
    world.hear(state=ModelState.LOADING)
    reason = await world.leave()
    assert reason == "The node n has made no progress with loading the model for 0.2 s."
    assert world.stalled == frozenset()


async def test_nothing_is_looked_at_where_nothing_runs() -> None:
    world = World()
    with world.stalls.watch(lease(), lambda: False):
        pass
    world.clock.advance(10.0)
    world.stalls._check()
    assert world.stalled == frozenset()
    assert world.stalls._timer is None


async def test_an_answer_that_has_not_begun_by_its_deadline_is_left() -> None:
    world = World()
    with pytest.raises(DeadlineExceeded, match="The node n had not begun"):
        async with asyncio.timeout(WAIT_S):
            with world.stalls.watch(lease(), lambda: False, time.monotonic()):
                await asyncio.get_running_loop().create_future()


async def test_an_answer_that_has_begun_has_no_deadline() -> None:
    world = World()
    with world.stalls.watch(lease(), lambda: False, time.monotonic()) as progress:
        progress.begin()
        assert progress.timer is None


async def test_a_caller_that_leaves_as_its_node_is_left_has_left() -> None:
    world = World()

    async def serve() -> None:
        with world.stalls.watch(lease(), lambda: False) as progress:
            progress.abort(NodeFailed())
            task.cancel()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(serve())
    with pytest.raises(asyncio.CancelledError):
        await task
