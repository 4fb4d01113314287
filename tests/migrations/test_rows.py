"""Rows of an older schema, as the steps after it leave them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import Connection, text

from registry import aliases, keys
from registry import migrate as module
from registry.db import Registry, WriteSession
from registry.migrate import migrate
from registry.records import AliasRecord, AliasTarget, KeyRecord

_OLD_KEY = """INSERT INTO keys (id, name, prefix, digest, scopes, created_at_s)
VALUES ('k1', 'ci', 'mlxf-ab', 'd', '["inference"]', 1.0)"""


async def at_revision(path: Path, revision: str, statement: str) -> Registry:
    """A registry of that revision, in which the statement was run."""

    def upgrade(connection: Connection) -> None:
        command.upgrade(module._config(connection), revision)
        connection.execute(text(statement))

    async def write(session: WriteSession) -> None:
        await session.run_sync(upgrade)

    opened = await Registry.open(path)
    await opened.write_schema(write)
    return opened


async def test_a_key_made_before_there_were_classes_is_of_the_default_one(tmp_path: Path) -> None:
    opened = await at_revision(tmp_path / "registry.db", "0001", _OLD_KEY)
    await migrate(opened)
    async with opened.read() as session:
        [found] = await keys.list_all(session)
    await opened.close()
    assert found == KeyRecord("k1", "ci", "mlxf-ab", "d", ("inference",), 1.0, None, None)
    assert (found.priority, found.salt) == ("default", "")


async def test_an_alias_keeps_the_target_that_it_had(tmp_path: Path) -> None:
    row = "INSERT INTO aliases (name, target, created_at_s) VALUES ('fast', 'qwen', 1.0)"
    opened = await at_revision(tmp_path / "registry.db", "0003", row)
    await migrate(opened)
    async with opened.read() as session:
        [found] = await aliases.list_all(session)
    await opened.close()
    assert found == AliasRecord("fast", (AliasTarget("qwen"),), 1.0)
