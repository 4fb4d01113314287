"""Checks of the router's own machine and registry, each with what to do about it."""

from __future__ import annotations

import asyncio
import datetime
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.backup import first_fault
from registry.records import KeyRecord
from router.auth import SCOPE_INFERENCE
from router.settings import Settings
from serving import units
from serving.open_files import open_files, open_now
from serving.tls.given_certificate import SOON, utc_now, valid_until

OK, WARN, FAIL = "ok", "warn", "fail"
FULL_BYTES, SCARCE_BYTES = 64 * units.MIB, units.GIB
"""Free disk below which writes are about to fail, and below which somebody should look."""
_MANY_FILES = 0.8
_SLOW_S = 20.0
_DAY_S = 86_400.0
_SOON_S = SOON.total_seconds()
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class OwnCheck:
    """Result of one check."""

    check: str
    level: str
    """`ok`, `warn` or `fail`."""
    message: str
    """A sentence on the state, and on what to do unless that is `ok`."""


async def check_registry(path: Path, writes_fail: str) -> OwnCheck:
    """Reads the registry page by page; `writes_fail` is the reason why writes fail, or empty."""
    try:
        async with asyncio.timeout(_SLOW_S):
            fault = await asyncio.to_thread(first_fault, path)
    except TimeoutError:
        return OwnCheck(
            "registry",
            WARN,
            f"Reading all of {path} takes more than {_SLOW_S:.0f} s; is its disk "
            "slow? `router backup FILE` checks it, too.",
        )
    if fault:
        return OwnCheck(
            "registry",
            FAIL,
            f"{path} is damaged ({fault}). `router backup FILE` saves what can "
            "be read; `router restore FILE` puts an earlier backup in its place.",
        )
    if writes_fail:
        return OwnCheck(
            "registry",
            FAIL,
            f"It cannot be written: {writes_fail} Usage is kept in memory until it can.",
        )
    return OwnCheck("registry", OK, f"{path} is intact, {units.size(path.stat().st_size)}.")


def check_disk(path: Path, free_bytes: int | None = None) -> OwnCheck:
    """Checks the free space of the registry's disk."""
    free = shutil.disk_usage(path.parent).free if free_bytes is None else free_bytes
    words = f"{units.size(free)} are free where the registry is ({path.parent})."
    if free < FULL_BYTES:
        return OwnCheck("disk", FAIL, f"Only {words} Make room: usage is about to be lost.")
    if free < SCARCE_BYTES:
        return OwnCheck("disk", WARN, f"Only {words} Make room before it is full.")
    return OwnCheck("disk", OK, words)


def check_open_files(used: int | None = None, limit: int | None = None) -> OwnCheck:
    """Checks how many files, connections included, the process may still open."""
    used = open_now() if used is None else used
    limit = open_files() if limit is None else limit
    words = f"{used:,} of {limit:,} files and connections are open."
    if used > _MANY_FILES * limit:
        return OwnCheck(
            "open files",
            WARN,
            f"{words} Further clients are refused soon: raise the limit that "
            "starts the router (`ulimit -n`, `LimitNOFILE` in systemd, `SoftResourceLimits` in "
            "launchd).",
        )
    return OwnCheck("open files", OK, words)


def check_certificate(
    settings: Settings, now: datetime.datetime | None = None
) -> Iterator[OwnCheck]:
    """Checks how long the certificate for clients is valid; yields nothing without one."""
    if settings.tls_cert is None:
        return
    now = now or utc_now()
    try:
        until = valid_until(settings.tls_cert)
    except (OSError, ValueError) as error:
        yield OwnCheck("certificate", FAIL, f"{settings.tls_cert} cannot be read: {error}.")
        return
    words = f"{settings.tls_cert} is valid until {until:%Y-%m-%d %H:%M} UTC"
    again = "renew it, then restart the router, which reads it at its start."
    if until <= now:
        yield OwnCheck("certificate", FAIL, f"{words} and has expired: {again}")
    elif until - now < SOON:
        yield OwnCheck("certificate", WARN, f"{words} only: {again}")
    else:
        yield OwnCheck("certificate", OK, f"{words}.")


def check_keys(records: Sequence[KeyRecord], now_s: float) -> OwnCheck:
    """Checks which keys have expired or are about to."""
    kept = [each for each in records if each.revoked_at_s is None]
    expired = [each for each in kept if _left_s(each, now_s) <= 0]
    soon = [each for each in kept if 0 < _left_s(each, now_s) < _SOON_S]
    valid = [each for each in kept if each not in expired]
    if not any(SCOPE_INFERENCE in each.scopes for each in valid):
        return OwnCheck(
            "keys", WARN, "No valid key may send requests; `router keys create NAME` makes one."
        )
    if soon:
        first = min(_left_s(each, now_s) for each in soon)
        return OwnCheck(
            "keys",
            WARN,
            f"{_names(soon)} expire within two weeks, the first in "
            f"{first / _DAY_S:.0f} days; `router keys update NAME --expires-days N` extends one.",
        )
    if expired:
        return OwnCheck(
            "keys",
            OK,
            f"{len(valid):,} are valid. {_names(expired)} have expired; `router keys "
            "revoke NAME` removes one.",
        )
    return OwnCheck("keys", OK, f"{len(valid):,} are valid.")


def _left_s(record: KeyRecord, now_s: float) -> float:
    return float("inf") if record.expires_at_s is None else record.expires_at_s - now_s


def _names(records: Iterable[KeyRecord]) -> str:
    names = [each.name for each in records]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
