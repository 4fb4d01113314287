from __future__ import annotations

from dataclasses import replace

from registry import audit
from registry.db import Registry
from registry.records import AuditRecord

FIRST = AuditRecord(2.0, "cli", "add", "node mini", "{}", "10.0.0.9")
NEXT = replace(FIRST, at_s=1.0, verb="remove", outcome="conflict")


async def test_entries_are_numbered_and_the_newest_is_first(registry: Registry) -> None:
    first = await registry.write(lambda s: audit.add(s, FIRST))
    second = await registry.write(lambda s: audit.add(s, NEXT))
    assert first == replace(FIRST, id=first.id) and second == replace(NEXT, id=second.id)
    assert second.id > first.id
    async with registry.read() as session:
        assert await audit.recent(session, 9) == [second, first]
        assert await audit.recent(session, 1) == [second]
        assert await audit.recent(session, 9, since_s=1.5) == [first]


async def test_the_newest_entries_are_kept_apart_from_those_that_failed(
    registry: Registry,
) -> None:
    for number in range(60):
        failed = replace(NEXT, subject=f"failed {number}")
        done = replace(FIRST, subject=f"done {number}")
        await registry.write(lambda s, entry=failed: audit.add(s, entry))  # type: ignore[misc]
        if number < 25:
            await registry.write(lambda s, entry=done: audit.add(s, entry))  # type: ignore[misc]
    assert await registry.write(lambda s: audit.trim(s, 20)) == 58 + 5
    assert await registry.write(lambda s: audit.trim(s, 20)) == 0
    async with registry.read() as session:
        subjects = [entry.subject for entry in await audit.recent(session, 100)]
    assert subjects == [
        "failed 59",
        "failed 58",
        *(f"done {number}" for number in range(24, 4, -1)),
    ]
    await registry.write(lambda s: audit.add(s, FIRST))
    async with registry.read() as session:
        newest, before = await audit.recent(session, 2)
    assert newest.id > before.id
