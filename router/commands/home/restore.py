"""`router restore`: puts a backup in the registry's place, with the router stopped."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from registry import audit
from registry.backup import Restored, restore
from registry.db import Registry
from registry.errors import RegistryError
from registry.records import AuditRecord
from router.commands import console
from router.commands.home.backup import age_text, contents_text
from router.errors import StartError
from router.first_keys import finish_key_files, renew_lost_keys
from router.settings import Settings


def run(settings: Settings, backup: Path) -> None:
    """Restores and prints the result. Raises `StartError`, also if a router has the registry
    open."""
    try:
        with console.progress("Checking the backup"):
            done, renewed = asyncio.run(_restore(settings, backup.expanduser().absolute()))
        finish_key_files(renewed)
    except RegistryError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartError(f"{error.filename or settings.home} cannot be used ({reason}).") from error
    _print(done, renewed)


async def _restore(settings: Settings, backup: Path) -> tuple[Restored, Mapping[Path, str]]:
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def prepare(registry: Registry) -> Mapping[Path, str]:
        renewed = await renew_lost_keys(registry, settings)
        what = ("router restore", "registry.restore", "registry", backup.name)
        entry = AuditRecord(time.time(), *what)
        await registry.write(lambda session: audit.add(session, entry))
        return renewed

    return await restore(backup, settings.registry, prepare)


def _print(done: Restored, renewed: Mapping[Path, str]) -> None:
    before = done.contents.revision
    migrated = "" if before == done.revision else f", migrated from {before} to {done.revision}"
    console.print_line(
        f"{done.path} is the registry of the backup ({age_text(done.contents)}{migrated}):"
    )
    console.print_line(f"  {contents_text(done.contents)}.")
    for file, name in renewed.items():
        console.print_line(
            f"{file} has a new key, {name}: the backup's own is not on this machine."
        )
    if done.replaced is not None:
        console.print_line(
            f"The registry before it is {done.replaced}; "
            f"`router restore {done.replaced}` undoes this."
        )
    console.print_line("`router serve` starts the router with it.")
