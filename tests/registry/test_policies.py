from __future__ import annotations

from functools import partial

from registry import nodes, policies
from registry.db import Registry
from registry.records import NodeRecord, PolicyRecord

EVERYWHERE = PolicyRecord("m", "", pinned=False, keep_alive_s=600.0)
THERE = PolicyRecord("m", "n1", pinned=True, keep_alive_s=None)


async def listed(registry: Registry) -> list[PolicyRecord]:
    async with registry.read() as session:
        return await policies.list_all(session)


async def test_a_policy_is_kept_changed_and_forgotten_where_it_wants_nothing(
    registry: Registry,
) -> None:
    for record in (THERE, EVERYWHERE):
        assert await registry.write(partial(policies.put, record=record)) == record
    assert await listed(registry) == [EVERYWHERE, THERE]
    for_ever = PolicyRecord("m", "", pinned=False, keep_alive_s=0.0)
    await registry.write(lambda s: policies.put(s, for_ever))
    assert await listed(registry) == [for_ever, THERE]
    await registry.write(lambda s: policies.put(s, PolicyRecord("m", "n1", False, None)))
    assert await listed(registry) == [for_ever]


async def test_removing_a_node_takes_its_policies_only(registry: Registry) -> None:
    node = NodeRecord("n1", "mini", "https://mini:1", "agent", "{}", 5.5)
    await registry.write(lambda s: nodes.add(s, node))
    for record in (THERE, EVERYWHERE):
        await registry.write(partial(policies.put, record=record))
    await registry.write(lambda s: nodes.remove(s, "mini"))
    assert await listed(registry) == [EVERYWHERE]
