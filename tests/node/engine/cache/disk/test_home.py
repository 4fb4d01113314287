"""The disk tiers of all models together."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.engine.cache.disk.home import claim, clear_folder, name_folder, trim_home, unnamed
from node.engine.cache.disk.tier import SsdTier, open_tier
from node.engine.cache.parts import EntryKind
from node.ipc.kv_files import POSITIONS_NAME
from node.prefixes.saved_positions import save_positions
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


def test_the_caches_that_no_process_uses_are_wiped(tmp_path: Path) -> None:
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


def test_saved_positions_are_deleted_with_the_last_file(tmp_path: Path) -> None:
    tier = _filled(tmp_path, "a", 100)
    size = tier.nbytes // 3
    tier.close()
    save_positions(tmp_path / "a", b"", [])
    trim_home(tmp_path, size)
    assert (tmp_path / "a" / POSITIONS_NAME).exists()
    trim_home(tmp_path, 0)
    assert not (tmp_path / "a" / POSITIONS_NAME).exists()


def test_a_folder_gets_the_name_that_was_kept_for_it(tmp_path: Path) -> None:
    name = unnamed()
    tier = _filled(tmp_path, name, 1)
    name_folder(tmp_path / name, FINGERPRINT)
    claim(tmp_path, FINGERPRINT)
    assert not (tmp_path / FINGERPRINT).exists(), "an engine uses it"
    tier.close()
    claim(tmp_path, "other")
    assert not (tmp_path / "other").exists()
    claim(tmp_path, FINGERPRINT)
    assert not (tmp_path / name).exists()
    with closing(open_tier(tmp_path, LIMITS, FINGERPRINT)) as named:
        assert len(named.entries()) == 3


def test_of_folders_of_one_fingerprint_the_named_or_else_the_last_used_stays(
    tmp_path: Path,
) -> None:
    names = [unnamed() for _ in range(3)]
    for used_s, name in enumerate(names):
        _filled(tmp_path, name, used_s).close()
        name_folder(tmp_path / name, FINGERPRINT)
        (tmp_path / name / "mine").write_text(name)
        for path in (tmp_path / name).iterdir():
            os.utime(path, (used_s, used_s))
    claim(tmp_path, FINGERPRINT)
    assert [path.name for path in tmp_path.iterdir()] == [FINGERPRINT]
    assert (tmp_path / FINGERPRINT / "mine").read_text() == names[2]
    late = unnamed()
    _filled(tmp_path, late, 9).close()
    name_folder(tmp_path / late, FINGERPRINT)
    claim(tmp_path, FINGERPRINT)
    assert [path.name for path in tmp_path.iterdir()] == [FINGERPRINT]
    assert (tmp_path / FINGERPRINT / "mine").exists()


def test_folders_that_never_got_a_name_are_deleted_at_the_next_start(tmp_path: Path) -> None:
    _filled(tmp_path, unnamed(), 1).close()
    used, kept = unnamed(), unnamed()
    tier = _filled(tmp_path, used, 1)
    _filled(tmp_path, kept, 1).close()
    name_folder(tmp_path / kept, FINGERPRINT)
    trim_home(tmp_path, 1 << 40)
    assert {path.name for path in tmp_path.iterdir()} == {used, kept}
    tier.close()
