"""Tests an engine's calls of MLX's allocator on a Mac; the calls are recorded here."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import msgspec
import pytest

from node.engine.load import load
from node.engine.model.load import LoadedModel, load_folder
from node.ipc.generate import GenerateRequest
from node.ipc.messages import EngineSpec, MemoryLease
from node.settings import Wired
from tests.mlx.driver import GREEDY, Driver, make_spec, prompt

pytestmark = pytest.mark.mlx

LEASE = MemoryLease(1 << 20, 1 << 30, 1 << 28, 1 << 29)
WORKING_SET_BYTES = 1 << 40


def calls_of_a_life(folder: Path, wired: Wired, monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """Wired limits that are set, and what happens between, from an engine's load to its end."""
    calls: list[int | str] = []

    def loaded(path: Path, progress: Callable[[float], None]) -> LoadedModel:
        calls.append("load")
        return load_folder(path, progress)

    monkeypatch.setattr("node.engine.load.load_folder", loaded)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    device = {"max_recommended_working_set_size": WORKING_SET_BYTES}
    monkeypatch.setattr(mx, "device_info", lambda: device)
    monkeypatch.setattr(mx, "set_wired_limit", calls.append)

    def live(spec: EngineSpec) -> None:
        engine = load(spec, lambda fraction: None)
        # Two prompts that evict each other's KV, beside leases that grow and shrink.
        for size, tokens in enumerate((prompt(300, 1), prompt(300, 2))):
            engine.submit(GenerateRequest(f"{size}", tokens, 4, GREEDY))
            while not any(delta.is_last for delta in engine.step()):
                pass
            stored_bytes = (size % 2) << 28
            engine.set_lease(msgspec.structs.replace(LEASE, stored_kv_bytes=stored_bytes))
        calls.append("end")
        engine.close()

    with ThreadPoolExecutor(1) as thread:
        spec = make_spec(folder, lease=LEASE, wired=wired)
        thread.submit(live, spec).result(60)
    return calls


def test_nothing_is_wired_unless_it_is_configured(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calls_of_a_life(tiny, "off", monkeypatch) == ["load", "end"]


def test_weights_are_wired_once_and_before_they_are_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of_a_life(tiny, "weights", monkeypatch)
    assert calls == [LEASE.weight_bytes, "load", "end"]


def test_a_lease_is_wired_as_often_as_it_changes(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of_a_life(tiny, "lease", monkeypatch)
    without_stored = LEASE.total_bytes - LEASE.stored_kv_bytes
    assert calls == ["load", LEASE.total_bytes, without_stored, LEASE.total_bytes, "end"]


def test_no_more_is_wired_than_the_gpu_may_have(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mlx.model.test_device.WORKING_SET_BYTES", 1 << 19)
    assert calls_of_a_life(tiny, "weights", monkeypatch)[0] == 1 << 19


def test_free_buffers_of_a_whole_step_are_kept_within_the_lease(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_cache_limit", limits.append)
    lease = msgspec.structs.replace(LEASE, overhead_bytes=1000)
    with Driver(tiny, spec=make_spec(tiny, lease=lease)) as engine:
        assert limits == [1000]
        engine.submit("a", prompt(900, 1), max_tokens=2)
        engine.run()
        kept_bytes = limits[-1]
        # The attention scores of the longest chunk alone, of 4 heads in 32 bits.
        assert kept_bytes > 4 * 128 * 128 * 4
        small = MemoryLease(1 << 20, 5000, 1000, 1000)
        engine.call(lambda: engine.engine.set_lease(small))
        assert limits[-1] == 5000 + 1000 + 1000, "what it has beside the weights"
        engine.call(lambda: engine.engine.set_lease(lease))
        assert limits[-1] == kept_bytes
