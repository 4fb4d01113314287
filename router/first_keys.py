"""The first keys of a fleet, each in a file that only its owner can read."""

import itertools
import os
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from registry import audit, keys
from registry.db import Registry, WriteSession
from registry.records import AuditRecord, KeyRecord
from router.auth import SCOPE_INFERENCE, SCOPES, digest, new_key
from router.errors import StartError
from router.settings import Settings
from router.states import SCOPE_EXTERNAL

ACTOR = "router"
"""Actor of what the router does by itself, in the audit log."""


async def make_first_keys(registry: Registry, settings: Settings) -> None:
    """At the first start, makes an admin key for the command line and an inference key for people.

    Raises `StartError` if the registry has no keys but the key files exist: they belong to another
    registry, and a new fleet would make all keys of the old one useless.
    """
    wanted = _wanted(settings)
    async with registry.read() as session:
        known = {record.digest for record in await keys.list_all(session)}
    if known:
        for file in wanted:
            _finish(file, known)
        return
    _refuse_standing(settings, [file for file in wanted if file.exists()])
    records = [_make(file, name, scopes) for file, (name, scopes) in wanted.items()]

    async def add(session: WriteSession) -> None:
        for record in records:
            await keys.add(session, record)
            detail = f"{record.prefix}… for {', '.join(record.scopes)}; at the first start"
            entry = AuditRecord(record.created_at_s, ACTOR, "key.create", record.name, detail)
            await audit.add(session, entry)

    await registry.write(add)
    for file, record in zip(wanted, records, strict=True):
        _finish(file, {record.digest})


async def renew_lost_keys(registry: Registry, settings: Settings) -> dict[Path, str]:
    """Makes a key for each key file whose key a restored registry does not accept, and returns the
    new keys' names by file. `finish_key_files` gives the files their keys once the registry is in
    place."""
    async with registry.read() as session:
        records = await keys.list_all(session)
    now_s = time.time()
    valid = {record.digest for record in records if _is_valid(record, now_s)}
    taken = {record.name for record in records}
    lost = {
        file: _make(file, _free_name(f"{name}-restored", taken), scopes)
        for file, (name, scopes) in _wanted(settings).items()
        if not file.exists() or digest(file.read_text().strip()) not in valid
    }

    async def add(session: WriteSession) -> None:
        for record in lost.values():
            await keys.add(session, record)

    await registry.write(add)
    return {file: record.name for file, record in lost.items()}


def finish_key_files(files: Iterable[Path]) -> None:
    for file in files:
        _partial(file).replace(file)


def _wanted(settings: Settings) -> dict[Path, tuple[str, tuple[str, ...]]]:
    """The name and the scopes of the key in each key file."""
    return {
        settings.admin_key_file: ("admin", SCOPES),
        settings.first_key_file: ("first", (SCOPE_INFERENCE, SCOPE_EXTERNAL)),
    }


def _is_valid(record: KeyRecord, now_s: float) -> bool:
    expired = record.expires_at_s is not None and record.expires_at_s <= now_s
    return record.revoked_at_s is None and not expired


def _free_name(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain((name,), numbered) if each not in taken)


def _refuse_standing(settings: Settings, standing: list[Path]) -> None:
    if standing:
        raise StartError(
            f"The registry {settings.registry} has no keys, but {standing[0]} exists: it belongs "
            "to another registry. Restore that one, such as from a backup; or, for a new fleet "
            f"with new nodes and keys, move {' and '.join(file.name for file in standing)} away."
        )


def _make(file: Path, name: str, scopes: tuple[str, ...]) -> KeyRecord:
    """Makes a key and writes it to a partial file, which stays until the registry has the key."""
    key, prefix, key_digest = new_key()
    write_secret(_partial(file), key)
    return KeyRecord(
        id=secrets.token_hex(8),
        name=name,
        prefix=prefix,
        digest=key_digest,
        scopes=scopes,
        created_at_s=time.time(),
        expires_at_s=None,
        revoked_at_s=None,
    )


def _finish(file: Path, known: set[str]) -> None:
    """Gives the file its key if the registry has it, even if the start that made it was
    interrupted; a key that the registry does not have is deleted."""
    partial = _partial(file)
    if not partial.exists():
        return
    if digest(partial.read_text().strip()) in known:
        partial.replace(file)
    else:
        partial.unlink()


def _partial(file: Path) -> Path:
    return file.with_suffix(".partial")


def write_secret(file: Path, text: str) -> None:
    """Writes a file that only its owner can read, and syncs it to the disk."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text + "\n")
        out.flush()
        os.fsync(descriptor)
