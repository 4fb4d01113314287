from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.engine import URL

from registry.migrate import open_migrated
from registry.tables import metadata


def schema(connection: Connection) -> dict[str, Any]:
    inspector = inspect(connection)
    found: dict[str, Any] = {}
    for name in inspector.get_table_names():
        columns = [
            {**column, "type": repr(column["type"])} for column in inspector.get_columns(name)
        ]
        found[name] = {
            "columns": sorted(columns, key=lambda column: str(column["name"])),
            "primary key": inspector.get_pk_constraint(name),
            "foreign keys": by_name(inspector.get_foreign_keys(name)),
            "unique": by_name(inspector.get_unique_constraints(name)),
            "checks": by_name(inspector.get_check_constraints(name)),
            "indexes": by_name(inspector.get_indexes(name)),
        }
    return found


def by_name(constraints: list[Any]) -> dict[str, Any]:
    return {str(constraint["name"]): plain(constraint) for constraint in constraints}


def plain(value: Any) -> Any:
    """The value with its SQL expressions as text, since they compare by identity."""
    return (
        {key: plain(part) for key, part in value.items()} if isinstance(value, dict) else str(value)
    )


def in_file(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


async def test_all_steps_together_make_the_schema_of_tables_py(tmp_path: Path) -> None:
    await (await open_migrated(tmp_path / "migrated.db")).close()
    migrated, declared = (create_engine(in_file(tmp_path / n)) for n in ("migrated.db", "made.db"))
    metadata.create_all(declared)
    with migrated.connect() as left, declared.connect() as right:
        found, wanted = schema(left), schema(right)
        differences = compare_metadata(MigrationContext.configure(left), metadata)
    migrated.dispose()
    declared.dispose()
    found.pop("alembic_version")
    assert found == wanted
    assert differences == []
    unrevoked = wanted["keys"]["indexes"]["uq_keys_active_name"]
    assert (unrevoked["unique"], unrevoked["column_names"]) == ("1", "['name']")
    assert "revoked_at_s IS NULL" in unrevoked["dialect_options"]["sqlite_where"]
