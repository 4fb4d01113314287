from __future__ import annotations

from registry import audit
from registry.db import Registry
from registry.records import AuditRecord


async def test_entries_are_numbered_and_the_newest_is_first(registry: Registry) -> None:
    first = await registry.write(lambda s: audit.add(s, 2.0, "cli", "add", "node mini", "{}"))
    second = await registry.write(lambda s: audit.add(s, 1.0, "cli", "remove", "node mini", ""))
    assert first == AuditRecord(first.id, 2.0, "cli", "add", "node mini", "{}")
    assert second.id > first.id
    async with registry.read() as session:
        assert await audit.recent(session, 9) == [second, first]
        assert await audit.recent(session, 1) == [second]
