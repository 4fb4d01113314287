from __future__ import annotations

import pytest

from registry import aliases
from registry.db import Registry
from registry.errors import NotFound
from registry.records import AliasRecord, AliasTarget


def alias(name: str, target: str, created_at_s: float) -> AliasRecord:
    return AliasRecord(name, (AliasTarget(target, {"temperature": 0.5}),), created_at_s)


async def test_an_alias_is_made_then_pointed_elsewhere(registry: Registry) -> None:
    made = await registry.write(lambda s: aliases.put(s, alias("fast", "llama", 1.0)))
    assert made == alias("fast", "llama", 1.0)
    moved = await registry.write(lambda s: aliases.put(s, alias("fast", "qwen", 2.0)))
    assert moved == alias("fast", "qwen", 1.0)


async def test_aliases_are_listed_by_name_and_removed(registry: Registry) -> None:
    await registry.write(lambda s: aliases.put(s, alias("smart", "qwen", 1.0)))
    await registry.write(lambda s: aliases.put(s, alias("fast", "llama", 2.0)))
    async with registry.read() as session:
        assert [alias.name for alias in await aliases.list_all(session)] == ["fast", "smart"]
    gone = await registry.write(lambda s: aliases.remove(s, "smart"))
    assert gone == alias("smart", "qwen", 1.0)
    async with registry.read() as session:
        assert [alias.name for alias in await aliases.list_all(session)] == ["fast"]


async def test_an_unknown_alias_is_not_found(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no alias 'fast'"):
        await registry.write(lambda s: aliases.remove(s, "fast"))
