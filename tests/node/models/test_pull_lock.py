"""Claims to a folder and to the room on the disk."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from node.errors import DownloadError, PullRefused
from node.models import pull_lock
from node.models.pull_lock import LOCK_FILE, SPARE_BYTES, claimed

GB = 10**9


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 60 GB."""
    usage = Usage(100 * GB, 0, 60 * GB + SPARE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)


def test_two_pulls_at_once_do_not_count_on_the_same_bytes(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", 40 * GB):
        message = r"needs 40\.0 GB .* 2.\.. GB are free .* 40\.0 GB for"
        with pytest.raises(PullRefused, match=message), claimed(tmp_path / "b", 40 * GB):
            raise AssertionError
        assert not (tmp_path / "b").exists()
        with claimed(tmp_path / "c", 20 * GB):
            pass
    with claimed(tmp_path / "b", 60 * GB):
        pass


def test_what_has_arrived_of_another_pull_is_needed_no_more(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", 40 * GB):
        with (tmp_path / "a" / "model.safetensors").open("wb") as weights:
            weights.truncate(30 * GB)
        with claimed(tmp_path / "b", 50 * GB - 1000):
            pass
        with pytest.raises(PullRefused), claimed(tmp_path / "b", 50 * GB + 1000):
            raise AssertionError


def test_a_pull_that_was_cut_short_claims_nothing(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", 60 * GB):
        pass
    assert (tmp_path / "a" / pull_lock.SIZE_FILE).exists()
    with claimed(tmp_path / "b", 60 * GB):
        pass
    (tmp_path / "a" / LOCK_FILE).unlink()
    with claimed(tmp_path / "b", 60 * GB):
        pass


def test_a_folder_that_is_pulled_into_is_no_final_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_lock, "LOCK_S", 0.0)
    (tmp_path / "a").mkdir()
    refused = pytest.raises(DownloadError, match="Another")
    with FileLock(tmp_path / "a" / LOCK_FILE), refused as it, claimed(tmp_path / "a", GB):
        raise AssertionError
    assert not it.value.is_final
