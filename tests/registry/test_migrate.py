from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sqlalchemy import text

from registry import migrate as module
from registry import nodes, residency
from registry.db import Registry, WriteSession
from registry.errors import NewerRegistry, RegistryFailed
from registry.migrate import Migration, migrate, open_migrated
from registry.records import NodeRecord, ResidencyRecord


async def tables(registry: Registry) -> set[str]:
    async with registry.read() as session:
        rows = await session.fetch_all(text("SELECT name FROM sqlite_master"))
        return {str(row["name"]) for row in rows}


async def test_an_empty_database_is_migrated_to_the_newest_revision(tmp_path: Path) -> None:
    opened = await Registry.open(tmp_path / "registry.db")
    assert await tables(opened) == set()
    assert (await migrate(opened)).before is None
    assert await tables(opened) >= {"nodes", "usage", "alembic_version"}
    await opened.close()


async def test_migrating_twice_is_a_no_op(registry: Registry) -> None:
    before = await tables(registry)
    again = await migrate(registry)
    assert again == Migration(again.after, again.after)
    assert await tables(registry) == before


async def test_a_database_of_a_newer_version_is_refused_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    newer = await open_migrated(path)
    await newer.write(lambda s: s.execute(text("UPDATE alembic_version SET version_num='9999'")))
    await newer.close()
    with pytest.raises(NewerRegistry, match="'9999'"):
        await open_migrated(path)
    await (await Registry.open(path)).close()


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("after the tables")

    opened = await Registry.open(tmp_path / "registry.db")
    monkeypatch.setattr(module, "Migration", fail)
    with pytest.raises(LookupError, match="after the tables"):
        await migrate(opened)
    assert await tables(opened) == set()
    await opened.close()


async def test_alembic_logs_nothing_and_other_loggers_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    handlers = list(logging.getLogger().handlers)
    await (await open_migrated(tmp_path / "registry.db")).close()
    assert [record for record in caplog.records if record.name.startswith("alembic")] == []
    assert logging.getLogger().handlers == handlers
    assert capsys.readouterr() == ("", "")


async def fill(registry: Registry) -> None:
    node = NodeRecord("n1", "mini", "https://mini", "agent", "{}", 1.0)
    rows = [ResidencyRecord("n1", "qwen", "ready", 1, 1.0)]
    await registry.write(lambda s: nodes.add(s, node))
    await registry.write(lambda s: residency.replace_node(s, "n1", rows))


async def test_a_schema_change_may_remake_a_table_that_others_refer_to(
    registry: Registry,
) -> None:
    async def remake(session: WriteSession) -> None:
        for statement in (
            "CREATE TABLE made AS SELECT * FROM nodes",
            "DROP TABLE nodes",
            "CREATE TABLE nodes (id TEXT PRIMARY KEY)",
            "INSERT INTO nodes SELECT id FROM made",
            "DROP TABLE made",
        ):
            await session.execute(text(statement))

    await fill(registry)
    await registry.write_schema(remake)
    async with registry.read() as session:
        assert len(await residency.list_all(session)) == 1


async def test_a_schema_change_that_breaks_a_reference_is_undone(registry: Registry) -> None:
    await fill(registry)
    with pytest.raises(RegistryFailed, match="a row of residency refers to a missing row"):
        await registry.write_schema(lambda s: s.execute(text("DELETE FROM nodes")))
    async with registry.read() as session:
        assert len(await nodes.list_all(session)) == 1
    await registry.write(lambda s: nodes.remove(s, "mini"))
    async with registry.read() as session:
        assert await residency.list_all(session) == []
