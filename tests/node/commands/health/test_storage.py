"""The agent's folder, its secrets, and the speed of its disk."""

import os
from pathlib import Path

import pytest

from node.commands.checks import Level
from node.commands.health.storage import (
    DiskSpeed,
    check_disk_speed,
    check_home,
    measure_disk,
)
from node.settings import Settings


@pytest.mark.parametrize(
    ("mode", "level", "words"),
    [
        (0o700, Level.OK, "Only you can read"),
        (0o755, Level.WARN, "can list"),
        (0o770, Level.FAIL, "can change files"),
    ],
)
def test_a_home_is_for_its_owner_alone(tmp_path: Path, mode: int, level: Level, words: str) -> None:
    tmp_path.chmod(mode)
    check = check_home(Settings(home=tmp_path))
    assert check.level is level
    assert words in check.sentence
    assert ("chmod 700" in check.advice) is (level is not Level.OK)


def test_a_secret_that_others_can_read_fails_the_check(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = Settings(home=tmp_path)
    settings.tls_file.write_text("key")
    settings.tls_file.chmod(0o644)
    check = check_home(settings)
    assert (check.level, "tls.pem" in check.sentence) == (Level.FAIL, True)
    assert f"chmod 600 {settings.tls_file}" in check.advice


def test_a_home_of_somebody_else_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    check = check_home(Settings(home=tmp_path))
    assert (check.level, "another user" in check.sentence) == (Level.FAIL, True)


def test_a_home_that_is_not_made_yet_is_no_fault(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "none")
    assert check_home(settings).level is Level.OK
    check = check_disk_speed(settings, 10**12)
    assert (check.level, "there is no folder" in check.sentence) == (Level.UNKNOWN, True)
    assert not settings.home.exists()


@pytest.mark.parametrize(
    ("speed", "level", "words"),
    [
        (DiskSpeed(2e9, 3e9), Level.OK, ""),
        (DiskSpeed(2e9, 1e8), Level.WARN, "10 GB takes 100 s to load"),
        (DiskSpeed(1e8, 3e9), Level.WARN, "stored KV are written slowly"),
    ],
)
def test_a_slow_disk_is_named_with_what_it_costs(
    tmp_path: Path, speed: DiskSpeed, level: Level, words: str
) -> None:
    check = check_disk_speed(Settings(home=tmp_path), 10**12, lambda _: speed)
    assert check.level is level
    assert f"reads {speed.read / 1e6:,.0f}." in check.sentence
    assert words in check.advice


def test_a_full_or_broken_disk_is_not_measured(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert check_disk_speed(settings, 10**6).level is Level.UNKNOWN

    def fail(_folder: Path) -> DiskSpeed:
        raise OSError(30, "Read-only file system")

    check = check_disk_speed(settings, 10**12, fail)
    assert (check.level, "Read-only file system" in check.sentence) == (Level.FAIL, True)


def test_a_measurement_leaves_no_file(tmp_path: Path) -> None:
    speed = measure_disk(tmp_path)
    assert speed.write > 0 and speed.read > 0
    assert list(tmp_path.iterdir()) == []
