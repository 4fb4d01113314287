from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from registry import nodes, residency, usage
from registry.db import Registry
from registry.errors import Conflict, NotFound
from registry.records import NodeRecord, ResidencyRecord, UsageRecord
from tests.registry.rows import usage_rows

MINI = NodeRecord("n1", "mini", "https://mini:1", "agent", '{"secret": "s"}', 5.5)
STUDIO = NodeRecord("n2", "studio", "https://studio:1", "openai", "{}", 6.0, max_rows=4)


async def test_added_nodes_are_found_by_name_and_listed_by_name(registry: Registry) -> None:
    assert await registry.write(lambda s: nodes.add(s, STUDIO)) == STUDIO
    assert await registry.write(lambda s: nodes.add(s, MINI)) == MINI
    async with registry.read() as session:
        assert await nodes.get(session, "mini") == MINI
        assert await nodes.list_all(session) == [MINI, STUDIO]


@pytest.mark.parametrize(
    ("what", "name", "clash"),
    [
        ("name", "mini", replace(STUDIO, name="mini")),
        ("url", "https://mini:1", replace(STUDIO, url="https://mini:1")),
        ("id", "n1", replace(STUDIO, id="n1")),
    ],
)
async def test_a_taken_name_url_or_id_is_a_conflict_that_names_it(
    registry: Registry, what: str, name: str, clash: NodeRecord
) -> None:
    await registry.write(lambda s: nodes.add(s, MINI))
    with pytest.raises(Conflict) as conflict:
        await registry.write(lambda s: nodes.add(s, clash))
    assert (conflict.value.what, conflict.value.name) == (f"node {what}", name)
    async with registry.read() as session:
        assert await nodes.list_all(session) == [MINI]


async def test_removing_a_node_takes_its_residency_and_leaves_its_usage(
    registry: Registry,
) -> None:
    rows = [ResidencyRecord("n1", "qwen", "ready", 1, 1.0)]
    nothing = (None, None, None, None)
    record = UsageRecord("r1", "n1", "i", 1, "k", "m", "stop", *nothing, *nothing, 9.0)
    for node in (MINI, STUDIO):
        await registry.write(partial(nodes.add, record=node))
    await registry.write(lambda s: residency.replace_node(s, "n1", rows))
    kept = [ResidencyRecord("n2", "qwen", "ready", 1, 1.0)]
    await registry.write(lambda s: residency.replace_node(s, "n2", kept))
    await registry.write(lambda s: usage.add_many(s, [record]))
    assert await registry.write(lambda s: nodes.remove(s, "mini")) == MINI
    async with registry.read() as session:
        assert await nodes.list_all(session) == [STUDIO]
        assert await residency.list_all(session) == kept
        assert await usage_rows(session) == [record]


async def test_an_unknown_name_is_not_found(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no node 'mini'"):
        await registry.write(lambda s: nodes.remove(s, "mini"))
    async with registry.read() as session:
        with pytest.raises(NotFound):
            await nodes.get(session, "mini")


async def test_what_an_admin_wants_of_a_node_is_kept(registry: Registry) -> None:
    await registry.write(lambda s: nodes.add(s, MINI))
    cordoned = replace(MINI, state="cordoned")
    assert await registry.write(lambda s: nodes.set_state(s, "mini", "cordoned")) == cordoned
    async with registry.read() as session:
        assert await nodes.list_all(session) == [cordoned]
    with pytest.raises(NotFound):
        await registry.write(lambda s: nodes.set_state(s, "gone", "cordoned"))


async def test_what_an_admin_accepts_is_added_once(registry: Registry) -> None:
    await registry.write(lambda s: nodes.add(s, replace(STUDIO, accepted=("a",))))
    await registry.write(lambda s: nodes.add(s, MINI))
    for models in (["b", "a"], ["b"], []):
        record = await registry.write(lambda s, m=models: nodes.accept(s, "studio", m))  # type: ignore[misc]
    assert record.accepted == ("a", "b")
    async with registry.read() as session:
        assert [node.accepted for node in await nodes.list_all(session)] == [None, ("a", "b")]
    with pytest.raises(NotFound):
        await registry.write(lambda s: nodes.accept(s, "nobody", ["a"]))


async def test_a_node_gets_another_credential_or_url_and_keeps_the_rest(
    registry: Registry,
) -> None:
    for node in (MINI, STUDIO):
        await registry.write(partial(nodes.add, record=node))
    changed = await registry.write(lambda s: nodes.set_access(s, "mini", credential="new"))
    assert changed == replace(MINI, credential="new")
    changed = await registry.write(lambda s: nodes.set_access(s, "mini", url="https://mini:2"))
    assert changed == replace(MINI, credential="new", url="https://mini:2")
    assert await registry.write(lambda s: nodes.set_access(s, "mini", url="https://mini:2"))
    with pytest.raises(Conflict, match="studio"):
        await registry.write(lambda s: nodes.set_access(s, "mini", url="https://studio:1"))
    with pytest.raises(NotFound):
        await registry.write(lambda s: nodes.set_access(s, "none", credential="x"))
    async with registry.read() as session:
        assert await nodes.list_all(session) == [changed, STUDIO]


async def test_how_a_node_is_woken_is_kept(registry: Registry) -> None:
    mini = replace(MINI, wake_mac="a0:00:00:00:00:01", wakes=True)
    await registry.write(lambda s: nodes.add(s, mini))
    await registry.write(lambda s: nodes.set_macs(s, "n1", ("a0:00:00:00:00:02",)))
    found = await registry.write(lambda s: nodes.set_waking(s, "mini", wakes=False))
    assert found == replace(mini, macs=("a0:00:00:00:00:02",), wakes=False)
    found = await registry.write(lambda s: nodes.set_waking(s, "mini", mac="a0:00:00:00:00:03"))
    assert (found.wake_mac, found.wakes) == ("a0:00:00:00:00:03", False)
    async with registry.read() as session:
        assert await nodes.get(session, "mini") == found
    with pytest.raises(NotFound, match="no node 'gone'"):
        await registry.write(lambda s: nodes.set_waking(s, "gone", wakes=True))
