from __future__ import annotations

from registry.tables import metadata


def test_every_constraint_and_index_has_a_name() -> None:
    for table in metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name
        assert all(index.name for index in table.indexes), table.name


def test_usage_refers_to_no_other_table() -> None:
    assert not metadata.tables["usage"].foreign_keys
