"""Checks of the router on its own machine."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3
from pathlib import Path

import pytest

from registry.records import KeyRecord
from router import own_checks
from router.own_checks import FAIL, OK, WARN
from router.settings import Settings
from serving.open_files import open_now
from serving.units import GIB, MIB

DAY_S = 86_400.0
NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def key(name: str, *, days: float | None = None, revoked: bool = False) -> KeyRecord:
    expires_s = None if days is None else days * DAY_S
    revoked_s = 0.0 if revoked else None
    return KeyRecord(name, name, "mlxf", name, ("inference",), 0.0, expires_s, revoked_s)


async def test_an_intact_registry_is_ok_and_a_damaged_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (a TEXT)")
        database.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,) for _ in range(100)])
    database.close()
    whole = await own_checks.check_registry(path, "")
    assert (whole.level, str(path) in whole.message) == (OK, True)
    refused = await own_checks.check_registry(path, "The disk is full.")
    assert refused.level == FAIL and "The disk is full." in refused.message
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 5] = b"\x7f" * 8192
    path.write_bytes(data)
    damaged = await own_checks.check_registry(path, "")
    assert damaged.level == FAIL and "router restore FILE" in damaged.message
    path.unlink()
    assert (await own_checks.check_registry(path, "")).level == FAIL


async def test_a_registry_that_takes_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_given: object) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(own_checks, "_SLOW_S", 0.01)
    monkeypatch.setattr(asyncio, "to_thread", never)
    assert (await own_checks.check_registry(tmp_path, "")).level == WARN


@pytest.mark.parametrize(
    ("free_bytes", "level"), [(100 * GIB, OK), (GIB - 1, WARN), (64 * MIB - 1, FAIL)]
)
def test_a_disk_that_fills_up_is_noticed(tmp_path: Path, free_bytes: int, level: str) -> None:
    assert own_checks.check_disk(tmp_path / "registry.db", free_bytes).level == level
    assert own_checks.check_disk(tmp_path / "registry.db").level in (OK, WARN, FAIL)


def test_files_that_run_out_are_noticed() -> None:
    assert own_checks.check_open_files().level == OK
    check = own_checks.check_open_files(used=810, limit=1000)
    assert check.level == WARN and "810 of 1,000" in check.message


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = open_now()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert open_now() == before + 2


@pytest.mark.parametrize(
    ("days", "level", "word"),
    [(90, OK, "is valid until"), (5, WARN, "renew it"), (-1, FAIL, "has expired")],
)
def test_a_certificate_that_ends_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, level: str, word: str
) -> None:
    end = NOW + datetime.timedelta(days=days)
    monkeypatch.setattr(own_checks, "valid_until", lambda _file: end)
    settings = Settings(home=tmp_path, tls_cert=tmp_path / "router.pem")
    (check,) = own_checks.check_certificate(settings, NOW)
    assert check.level == level and word in check.message


def test_a_certificate_that_cannot_be_read_fails_and_none_is_not_checked(tmp_path: Path) -> None:
    assert list(own_checks.check_certificate(Settings(home=tmp_path))) == []
    file = tmp_path / "router.pem"
    settings = Settings(home=tmp_path, tls_cert=file)
    assert next(own_checks.check_certificate(settings)).level == FAIL
    file.write_text("no certificate")
    assert next(own_checks.check_certificate(settings)).level == FAIL


@pytest.mark.parametrize(
    ("keys", "level", "word"),
    [
        ([key("a")], OK, "1 are valid"),
        ([], WARN, "router keys create NAME"),
        ([key("a", revoked=True)], WARN, "router keys create NAME"),
        ([key("a", days=-1)], WARN, "router keys create NAME"),
        ([key("a"), key("b", days=3)], WARN, "b expire within two weeks, the first in 3 days"),
        ([key("a"), key("b", days=-1)], OK, "b have expired"),
        ([key("a", days=100)], OK, "1 are valid"),
    ],
)
def test_keys_that_expire_are_named(keys: list[KeyRecord], level: str, word: str) -> None:
    check = own_checks.check_keys(keys, 0.0)
    assert check.level == level and word in check.message
