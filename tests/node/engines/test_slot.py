"""The states of one model, and the expected cost of unloading it."""

import ast
import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.app import scripted_entries
from node.engine.scripted.script import Script
from node.engines.load_history import LOAD_COOL_DOWN_S
from node.engines.memory_budget import Budget
from node.engines.model_status import PlannedSizes, model_status
from node.engines.residency_policy import Residency
from node.engines.slot import LOAD_BYTES_PER_S, REUSE_HALF_LIFE_S, EngineHandle, Slot
from node.ipc.learned_rates import PrefillRate
from node.protocol.messages import ModelSpeed, ModelState
from serving.units import GIB
from tests.sources import ROOT

WORK = cast("asyncio.Task[None]", SimpleNamespace(cancelling=lambda: 0))


def new_slot() -> Slot:
    (entry,) = scripted_entries(Script())
    return Slot(entry)


def ready_slot(load_s: float = 4.0, **stats: Any) -> Slot:
    """Returns a slot of 1 GiB, with a cache of 1,000 bytes a token, prefilled at 500 tokens/s."""
    slot = new_slot()
    reported = SimpleNamespace(prefill_rates=(PrefillRate(0, 500.0),), **stats) if stats else None
    link, info = SimpleNamespace(stats=reported), SimpleNamespace(stored_bytes_per_token=1000)
    slot.begin_load(WORK, 1)
    handle = cast(EngineHandle, SimpleNamespace(link=link, info=info))
    slot.complete_load(handle, load_s, 0.0)
    return slot


def test_before_a_load_was_measured_its_time_is_estimated_from_the_weights() -> None:
    assert new_slot().unload_cost_s(0.0) == pytest.approx(1024**3 / LOAD_BYTES_PER_S)
    assert ready_slot(4.0).unload_cost_s(0.0) == 4.0


def test_what_its_cache_has_in_memory_alone_would_be_prefilled_again() -> None:
    slot = ready_slot(4.0, stored_kv_bytes=50_000_000, disk_kv_bytes=20_000_000)
    assert slot.unload_cost_s(0.0) == pytest.approx(4.0 + 30_000 / 500)


def test_the_longer_a_model_is_idle_the_less_it_is_worth() -> None:
    slot = ready_slot(4.0)
    assert slot.unload_cost_s(REUSE_HALF_LIFE_S) == pytest.approx(2.0)
    assert slot.unload_cost_s(3 * REUSE_HALF_LIFE_S) == pytest.approx(0.5)
    slot.use.lease()
    assert slot.unload_cost_s(3 * REUSE_HALF_LIFE_S) == 4.0


def test_a_model_is_idle_only_where_it_is_loaded_and_nothing_leases_or_awaits_it() -> None:
    slot = ready_slot()
    assert slot.idle_s(5.0) == 5.0
    key = slot.use.begin_wait(1.0, ahead=False)
    assert slot.idle_s(5.0) is None
    slot.use.end_wait(key, 2.0)
    slot.begin_stop(WORK)
    assert slot.idle_s(5.0) is None


def test_a_model_that_is_unloaded_is_reported_with_the_speed_that_it_had() -> None:
    slot = ready_slot()
    slot.set_speed(ModelSpeed(step_s=0.01))
    slot.set_speed(None)
    slot.end_engine()
    sizes = PlannedSizes(0, 1)
    status = model_status(slot.entry, slot, Budget(GIB), Residency(), sizes, 0.0)
    assert status.speed == ModelSpeed(step_s=0.01)


def test_a_failed_load_leaves_no_engine_and_cools_down_until_it_is_reset() -> None:
    slot = new_slot()
    slot.begin_load(WORK, 7)
    slot.fail_load("Torn.", 10.0)
    assert (slot.state, slot.reason, slot.work) == (ModelState.FAILED, "Torn.", None)
    assert slot.failure(10.0).retry_after_s == LOAD_COOL_DOWN_S
    slot.forgive()
    assert (slot.state, slot.reason, slot.loads.retry_at_s) == (ModelState.ON_DISK, None, 0.0)


async def test_the_last_lease_ends_the_wait_of_a_stop() -> None:
    slot = ready_slot()
    slot.use.lease()
    slot.use.lease()
    idle = asyncio.create_task(slot.use.until_idle())
    assert not slot.use.end_lease(1.0)
    await asyncio.wait({idle}, timeout=0.01)
    assert not idle.done()
    assert slot.use.end_lease(2.0)
    await idle


def test_a_request_that_waits_keeps_a_load_from_being_abandoned() -> None:
    use = new_slot().use
    first, second = (use.begin_wait(at_s, ahead=True) for at_s in (1.0, 2.0))
    assert use.oldest_wait_s == 1.0 and not use.has_request
    assert not use.end_wait(first, 3.0) and use.abandoned_s is None
    assert use.end_wait(second, 4.0) and use.abandoned_s == 4.0
    use.begin_wait(5.0, ahead=False)
    assert use.abandoned_s is None and use.has_request


OWNERS = {"slot.py", "model_use.py", "load_history.py"}


def test_nothing_but_its_owners_changes_a_slot() -> None:
    """Assignments to a field of a slot, its use or its loads, in other files of the folder."""
    found = []
    for path in sorted((ROOT / "node/engines").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            if path.name not in OWNERS and "slot" in ast.unparse(node.value):
                found.append(f"{path.name}: {ast.unparse(node)}")
    assert found == []
