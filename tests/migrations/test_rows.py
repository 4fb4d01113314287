"""Rows of an older schema, as the steps after it leave them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import Connection

from registry import aliases, keys, nodes
from registry import migrate as module
from registry.db import Registry, WriteSession
from registry.migrate import migrate
from registry.records import AliasRecord, AliasTarget, KeyRecord

_OLD_KEY = """INSERT INTO keys (id, name, prefix, digest, scopes, created_at_s)
VALUES ('k1', 'ci', 'mlxf-ab', 'd', '["inference"]', 1.0)"""


async def at_revision(path: Path, revision: str, *statements: str) -> Registry:
    """A registry of that revision, in which the statements were run."""

    def upgrade(connection: Connection) -> None:
        command.upgrade(module._config(connection), revision)
        for statement in statements:
            # The driver's own, since a colon in JSON is no parameter.
            connection.exec_driver_sql(statement)

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
    assert found == KeyRecord(
        "k1", "ci", "mlxf-ab", "d", ("inference", "external"), 1.0, None, None
    )
    assert (found.priority, found.salt) == ("default", "")


async def test_an_alias_keeps_the_target_that_it_had(tmp_path: Path) -> None:
    row = "INSERT INTO aliases (name, target, created_at_s) VALUES ('fast', 'qwen', 1.0)"
    opened = await at_revision(tmp_path / "registry.db", "0003", row)
    await migrate(opened)
    async with opened.read() as session:
        [found] = await aliases.list_all(session)
    await opened.close()
    assert found == AliasRecord("fast", (AliasTarget("qwen"),), 1.0)


async def test_a_server_s_last_list_is_accepted_and_keys_go_where_they_went(tmp_path: Path) -> None:
    opened = await at_revision(
        tmp_path / "registry.db",
        "0004",
        """INSERT INTO nodes (id, name, url, kind, credential, created_at_s) VALUES
        ('n1', 'lm', 'http://lm', 'openai', '{}', 1.0),
        ('n2', 'mini', 'http://m', 'agent', '{}', 1.0),
        ('n3', 'new', 'http://n', 'openai', '{}', 1.0)""",
        """INSERT INTO residency (node_id, model, state, weight_bytes, since_s) VALUES
        ('n1', 'b', 'ready', 0, 0.0), ('n1', 'a', 'ready', 0, 0.0), ('n2', 'c', 'ready', 0, 0.0)""",
        """INSERT INTO keys (id, name, prefix, digest, scopes, created_at_s) VALUES
        ('k1', 'ci', 'p', 'd1', '["admin"]', 1.0),
        ('k2', 'first', 'p', 'd2', '["admin", "inference"]', 2.0)""",
    )
    await migrate(opened)
    async with opened.read() as session:
        accepted = {node.name: node.accepted for node in await nodes.list_all(session)}
        scopes = [key.scopes for key in await keys.list_all(session)]
    await opened.close()
    assert accepted == {"lm": ("a", "b"), "mini": None, "new": ()}
    assert scopes == [("admin",), ("admin", "inference", "external")]


async def test_a_node_made_before_nodes_were_woken_is_not_woken_by_requests(
    tmp_path: Path,
) -> None:
    row = """INSERT INTO nodes (id, name, url, kind, credential, created_at_s) VALUES
    ('n1', 'mini', 'http://m', 'agent', '{}', 1.0)"""
    opened = await at_revision(tmp_path / "registry.db", "0006", row)
    await migrate(opened)
    async with opened.read() as session:
        [found] = await nodes.list_all(session)
    await opened.close()
    assert (found.wake_mac, found.macs, found.wakes) == (None, None, False)
