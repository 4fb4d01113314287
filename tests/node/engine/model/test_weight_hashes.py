"""Tests which hashes of weights are known without reading them, and which changes make them be
read again."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.engine.model import weight_hashes as module
from node.engine.model.weight_hashes import HASHES_FOLDER, WeightHashes
from node.models.saved_hashes import HashingStopped, sha256_of

NAMES = ("model-1.safetensors", "model-2.safetensors")


def never() -> bool:
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name in NAMES:
        (path / name).write_bytes(name.encode() * 1000)
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed."""
    names: list[str] = []

    def noted(path: Path, is_stopped: Callable[[], bool]) -> str:
        names.append(path.name)
        return hashed(path, is_stopped)

    hashed = sha256_of
    monkeypatch.setattr(module, "sha256_of", noted)
    return names


def hashes(folder: Path) -> WeightHashes:
    return WeightHashes(folder.parent / "kv", folder)


def test_all_of_each_file_is_hashed_once(folder: Path, read: list[str]) -> None:
    assert hashes(folder).known() is None
    found = hashes(folder).make(never)
    assert found == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in NAMES
    }
    assert hashes(folder).known() == found
    assert hashes(folder).make(never) == found
    assert sorted(read) == sorted(NAMES)


@pytest.mark.parametrize("offset", [0, 7_777, -1])
def test_a_file_that_was_written_is_read_again_whatever_its_timestamps_are(
    folder: Path, read: list[str], offset: int
) -> None:
    before = hashes(folder).make(never)
    read.clear()
    path = folder / NAMES[1]
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert hashes(folder).known() is None
    after = hashes(folder).make(never)
    assert read == [NAMES[1]]
    assert after[NAMES[1]] != before[NAMES[1]] and after[NAMES[0]] == before[NAMES[0]]


def test_a_file_more_or_less_makes_them_unknown(folder: Path) -> None:
    hashes(folder).make(never)
    (folder / "model-3.safetensors").write_bytes(b"3")
    assert hashes(folder).known() is None
    assert len(hashes(folder).make(never)) == 3
    (folder / NAMES[0]).unlink()
    assert (hashes(folder).known() or {}).keys() == {NAMES[1], "model-3.safetensors"}


def test_weights_that_change_while_they_are_read_are_not_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(path: Path, is_stopped: Callable[[], bool]) -> str:
        with path.open("ab") as file:
            file.write(b"more")
        return "0" * 64

    begun = hashes(folder)
    monkeypatch.setattr(module, "sha256_of", slow)
    with pytest.raises(HashingStopped):
        begun.make(never)
    assert hashes(folder).known() is None


def test_weights_that_changed_since_the_load_began_are_not_those_of_the_load(folder: Path) -> None:
    at_load = hashes(folder)
    (folder / NAMES[0]).write_bytes(b"other")
    with pytest.raises(HashingStopped):
        at_load.make(never)


def test_a_stop_keeps_what_is_done(folder: Path, read: list[str]) -> None:
    with pytest.raises(HashingStopped):
        hashes(folder).make(lambda: len(read) == 2)
    assert hashes(folder).known() is None
    read.clear()
    hashes(folder).make(never)
    assert len(read) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"folder": "/elsewhere", "files": {}}'])
def test_what_is_kept_and_cannot_be_used_is_made_again(folder: Path, content: bytes) -> None:
    found = hashes(folder).make(never)
    (kept,) = (folder.parent / "kv" / HASHES_FOLDER).iterdir()
    kept.write_bytes(content)
    assert hashes(folder).known() is None
    assert hashes(folder).make(never) == found == hashes(folder).known()


def test_what_is_stored_of_folders_that_were_removed_is_deleted(folder: Path) -> None:
    hashes(folder).make(never)
    other = folder.rename(folder.with_name("other"))
    hashes(other).make(never)
    assert len(list((folder.parent / "kv" / HASHES_FOLDER).iterdir())) == 1
