from __future__ import annotations

from functools import partial

import pytest

from registry import nodes, residency
from registry.db import Registry
from registry.errors import NotFound
from registry.records import NodeRecord, ResidencyRecord


async def add_nodes(registry: Registry) -> None:
    for id in ("n1", "n2"):
        node = NodeRecord(id, f"name-{id}", f"https://{id}", "agent", "{}", 1.0)
        await registry.write(partial(nodes.add, record=node))


async def test_rows_replace_those_of_their_node_only(registry: Registry) -> None:
    await add_nodes(registry)
    old = [ResidencyRecord("n1", "llama", "ready", 5, 1.0), ResidencyRecord("n1", "q", "x", 5, 1.0)]
    other = [ResidencyRecord("n2", "llama", "loading", 5, 2.0)]
    new = [ResidencyRecord("n1", "qwen", "ready", 2**40, 3.0)]
    await registry.write(lambda s: residency.replace_node(s, "n1", old))
    await registry.write(lambda s: residency.replace_node(s, "n2", other))
    await registry.write(lambda s: residency.replace_node(s, "n1", new))
    async with registry.read() as session:
        assert await residency.list_all(session) == new + other


async def test_no_rows_clear_the_node(registry: Registry) -> None:
    await add_nodes(registry)
    rows = [ResidencyRecord("n1", "llama", "ready", 5, 1.0)]
    await registry.write(lambda s: residency.replace_node(s, "n1", rows))
    await registry.write(lambda s: residency.replace_node(s, "n1", []))
    async with registry.read() as session:
        assert await residency.list_all(session) == []


async def test_an_unknown_node_is_not_found(registry: Registry) -> None:
    rows = [ResidencyRecord("n9", "llama", "ready", 5, 1.0)]
    with pytest.raises(NotFound, match="no node 'n9'"):
        await registry.write(lambda s: residency.replace_node(s, "n9", rows))


async def test_a_row_of_another_node_is_refused(registry: Registry) -> None:
    await add_nodes(registry)
    rows = [ResidencyRecord("n2", "llama", "ready", 5, 1.0)]
    with pytest.raises(ValueError, match="another node"):
        await registry.write(lambda s: residency.replace_node(s, "n1", rows))
