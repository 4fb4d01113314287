"""What a model's leaving is likely to cost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.app import scripted_entries
from node.engine.scripted.script import Script
from node.engines.memory_budget import Budget
from node.engines.slot import (
    LOAD_BYTES_PER_S,
    WANTED_AGAIN_S,
    EngineHandle,
    Sizes,
    Slot,
    Wishes,
    model_status,
)
from node.ipc.learned_rates import PrefillRate
from node.protocol.messages import ModelSpeed, ModelState
from serving.units import GIB


def ready_slot(**stats: Any) -> Slot:
    """Of 1 GiB, with a cache of 1,000 bytes a token, prefilled at 500 tokens/s."""
    (entry,) = scripted_entries(Script())
    slot = Slot(entry, state=ModelState.READY)
    told = SimpleNamespace(prefill_rates=(PrefillRate(0, 500.0),), **stats) if stats else None
    link, info = SimpleNamespace(stats=told), SimpleNamespace(stored_bytes_per_token=1000)
    slot.handle = cast(EngineHandle, SimpleNamespace(link=link, info=info))
    return slot


def test_before_a_load_was_measured_it_is_reckoned_from_the_weights() -> None:
    slot = ready_slot()
    assert slot.value_s(0.0) == pytest.approx(1024**3 / LOAD_BYTES_PER_S)
    slot.load_s = 4.0
    assert slot.value_s(0.0) == 4.0


def test_what_its_cache_holds_in_memory_alone_would_be_prefilled_again() -> None:
    slot = ready_slot(stored_kv_bytes=50_000_000, disk_kv_bytes=20_000_000)
    slot.load_s = 4.0
    assert slot.value_s(0.0) == pytest.approx(4.0 + 30_000 / 500)


def test_the_longer_a_model_is_idle_the_less_it_is_worth() -> None:
    slot = ready_slot()
    slot.load_s = 4.0
    assert slot.value_s(WANTED_AGAIN_S) == pytest.approx(2.0)
    assert slot.value_s(3 * WANTED_AGAIN_S) == pytest.approx(0.5)
    slot.leases = 1
    assert slot.value_s(3 * WANTED_AGAIN_S) == 4.0


def test_a_model_is_idle_only_where_it_is_loaded_and_nothing_holds_or_awaits_it() -> None:
    slot = ready_slot()
    assert slot.idle_s(5.0) == 5.0
    slot.waiting[object()] = 1.0
    assert slot.idle_s(5.0) is None
    slot.waiting.clear()
    slot.state = ModelState.DRAINING
    assert slot.idle_s(5.0) is None


def test_a_model_that_is_unloaded_is_told_of_with_the_speed_that_it_had() -> None:
    slot = ready_slot()
    slot.handle, slot.speed = None, ModelSpeed(step_s=0.01)
    told = model_status(slot.entry, slot, Budget(GIB), Wishes(), Sizes(0, 1), 0.0)
    assert told.speed == ModelSpeed(step_s=0.01)
