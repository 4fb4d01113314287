"""Bring a registry's schema up to this version's, with the Alembic files in `migrations`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from registry.db import Registry, WriteSession
from registry.errors import NewerRegistry
from registry.tables import metadata


@dataclass(frozen=True, slots=True)
class Migration:
    """The revision before (None for an empty database) and after."""

    before: str | None
    after: str


async def migrate(registry: Registry) -> Migration:
    """Upgrade to the newest revision in one transaction; a no-op when it is there already.

    Raises NewerRegistry when a newer mlx-fleet wrote the registry, and what
    `Registry.write` raises; a failed migration leaves the registry as it was.
    """

    async def upgrade(session: WriteSession) -> Migration:
        return await session.run_sync(_upgrade)

    return await registry.write_schema(upgrade)


async def open_migrated(url: str | Path) -> Registry:
    """Open the registry and migrate it; closed again when the migration fails.

    Raises what `Registry.open` and `migrate` raise.
    """
    registry = await Registry.open(url)
    try:
        await migrate(registry)
    except BaseException:
        await registry.close()
        raise
    return registry


def _upgrade(connection: Connection) -> Migration:
    config = _config(connection)
    script = ScriptDirectory.from_config(config)
    after = script.get_current_head()
    assert after is not None
    known = {revision.revision for revision in script.walk_revisions()}
    heads = MigrationContext.configure(connection).get_current_heads()
    for revision in heads:
        if revision not in known:
            raise NewerRegistry(revision)
    command.upgrade(config, "head")
    return Migration(heads[0] if heads else None, after)


def _config(connection: Connection) -> Config:
    # Alembic logs each step at INFO; a level that was set elsewhere stays.
    log = logging.getLogger("alembic")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
    config = Config()
    folder = str(files("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata
    return config
