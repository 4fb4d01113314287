"""The disk tiers of all models together."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.engine.cache.disk import SsdTier, open_tier
from node.engine.cache.disk_home import clear_folder, trim_home
from node.engine.cache.parts import EntryKind
from node.kept_positions import POSITIONS_NAME, keep
from tests.node.engine.cache.disk_world import (
    FINGERPRINT,
    LIMITS,
    ROOT,
    TIMEOUT_S,
    World,
    close_worlds,
    some_tensors,
    some_tokens,
)


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    close_worlds()


def _filled(home: Path, name: str, used_s: int) -> SsdTier:
    """A tier with three files, last used then."""
    tier = open_tier(home, LIMITS, name)
    for seed in range(3):
        tier.write(EntryKind.SPAN, ROOT, some_tokens(seed), some_tensors(seed))
    tier.flush(TIMEOUT_S)
    for path in (home / name).iterdir():
        os.utime(path, (used_s, used_s))
    return tier


def _count(home: Path, name: str) -> int:
    return len(list((home / name).glob("*.safetensors")))


def test_the_caches_that_nobody_uses_are_wiped(tmp_path: Path) -> None:
    idle = World(tmp_path / "idle")
    idle.written(1)
    size = sum(path.stat().st_size for path in idle.folder.iterdir())
    assert clear_folder(idle.home) == (0, (FINGERPRINT,))
    idle.tier.close()
    cleared = clear_folder(idle.home)
    assert cleared.busy == ()
    assert 0 < cleared.freed_bytes <= size
    assert list(idle.home.iterdir()) == []
    assert clear_folder(tmp_path / "nowhere") == (0, ())
    assert idle.reopen().entries() == []


def test_the_caches_used_longest_ago_shrink_until_all_fit(tmp_path: Path) -> None:
    old, older, oldest = (
        _filled(tmp_path, name, used_s) for name, used_s in (("c", 300), ("b", 200), ("a", 100))
    )
    size = old.nbytes // 3
    older.close()
    oldest.close()
    trim_home(tmp_path, 9 * size)
    assert [_count(tmp_path, name) for name in "abc"] == [3, 3, 3]
    for path in (tmp_path / "a").iterdir():
        os.utime(path, (100, 100))
    trim_home(tmp_path, 5 * size)
    assert [_count(tmp_path, name) for name in "abc"] == [0, 2, 3]
    trim_home(tmp_path, 0)
    assert [_count(tmp_path, name) for name in "abc"] == [0, 0, 3]
    old.close()
    trim_home(tmp_path, size)
    assert _count(tmp_path, "c") == 1
    trim_home(tmp_path / "nowhere", 0)


def test_what_is_kept_of_positions_goes_with_the_last_file(tmp_path: Path) -> None:
    tier = _filled(tmp_path, "a", 100)
    size = tier.nbytes // 3
    tier.close()
    keep(tmp_path / "a", b"", [])
    trim_home(tmp_path, size)
    assert (tmp_path / "a" / POSITIONS_NAME).exists()
    trim_home(tmp_path, 0)
    assert not (tmp_path / "a" / POSITIONS_NAME).exists()
