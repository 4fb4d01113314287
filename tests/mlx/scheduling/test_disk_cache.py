"""Under which name the KV of a model lies on disk, over the runs of its engines."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node.engine.model import weight_hashes
from node.engine.scheduling import disk_cache
from node.ipc.messages import DiskCache, EngineSpec
from node.models.saved_hashes import HashingStopped, sha256_of
from tests.mlx.driver import Driver, make_spec, prompt

pytestmark = pytest.mark.mlx

PROMPT = prompt(100, 1)


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def spec_of(model: Path) -> EngineSpec:
    kv_folder = str(model.parent / "kv")
    return make_spec(model, disk=DiskCache(kv_folder, max_bytes=1 << 30))


def run_engine(model: Path) -> int:
    """One run of an engine, in which it gets the same prompt; how much of it was cached."""
    with Driver(model, spec=spec_of(model)) as engine:
        usage = engine.alone(PROMPT, max_tokens=4).usage
        assert usage is not None
        return usage.cached_tokens


def folders(model: Path) -> set[str]:
    return {path.name for path in (model.parent / "kv").iterdir()} - {weight_hashes.HASHES_FOLDER}


def test_the_next_run_finds_what_a_new_model_left(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_engine(model) == 0
    (first,) = folders(model)
    assert first.startswith("new-")
    monkeypatch.setattr(weight_hashes, "sha256_of", None)
    for _ in range(2):
        assert run_engine(model) == 99
        (named,) = folders(model)
        assert len(named) == 32


@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 0.9, 1.0])
def test_weights_with_one_other_byte_anywhere_meet_no_old_kv(model: Path, share: float) -> None:
    assert run_engine(model) == 0
    assert run_engine(model) == 99
    weights = model / "model.safetensors"
    stat = weights.stat()
    data = bytearray(weights.read_bytes())
    data[int(share * (len(data) - 1))] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert run_engine(model) == 0
    assert run_engine(model) == 99
    assert len(folders(model)) == 2


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_another_config_or_tokenizer_meets_no_old_kv(model: Path, name: str) -> None:
    assert run_engine(model) == 0
    (model / name).write_text((model / name).read_text() + "\n")
    assert run_engine(model) == 0


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hashing goes on only when this is set."""
    may_go_on = threading.Event()

    def slow(path: Path, is_stopped: Callable[[], bool]) -> str:
        while not may_go_on.wait(0.01):
            if is_stopped():
                raise HashingStopped
        return hashed(path, is_stopped)

    hashed = sha256_of
    monkeypatch.setattr(weight_hashes, "sha256_of", slow)
    monkeypatch.setattr(disk_cache, "NAMING_S", 0.0)
    return may_go_on


def test_neither_load_nor_end_wait_for_the_weights_to_be_hashed(
    model: Path, hashing: threading.Event
) -> None:
    with Driver(model, spec=spec_of(model)) as engine:
        assert engine.engine.info.disk_bytes == 1 << 30
        engine.alone(PROMPT, max_tokens=4)
        again = engine.alone(PROMPT, max_tokens=4).usage
        assert again is not None and again.cached_tokens == 99
    assert folders(model) == set(), "nobody would find it again"
    hashing.set()


def test_a_run_that_is_killed_while_it_hashes_leaves_no_trouble(
    model: Path, hashing: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache.Naming, "sweep", lambda naming: None)
    assert run_engine(model) == 0
    hashing.set()
    monkeypatch.setattr(disk_cache, "NAMING_S", 60.0)
    assert run_engine(model) == 0
    assert run_engine(model) == 99
