from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from registry import nodes, schedules
from registry.db import Registry
from registry.errors import Conflict, NotFound
from registry.records import NodeRecord, ScheduleRecord

DAILY = ScheduleRecord("s1", "m", "n1", "0 8 * * *", "0 20 * * *", "UTC", 5.0)
ANYWHERE = replace(DAILY, id="s2", node_id="", created_at_s=6.0)


async def listed(registry: Registry) -> list[ScheduleRecord]:
    async with registry.read() as session:
        return await schedules.list_all(session)


async def test_schedules_are_listed_in_order_and_an_id_is_taken_once(registry: Registry) -> None:
    for record in (ANYWHERE, DAILY):
        await registry.write(partial(schedules.add, record=record))
    assert await listed(registry) == [DAILY, ANYWHERE]
    with pytest.raises(Conflict):
        await registry.write(lambda s: schedules.add(s, DAILY))
    assert await registry.write(lambda s: schedules.remove(s, "s1")) == DAILY
    with pytest.raises(NotFound):
        await registry.write(lambda s: schedules.remove(s, "s1"))
    assert await listed(registry) == [ANYWHERE]


async def test_a_due_time_fires_once_and_no_older_one_after_it(registry: Registry) -> None:
    await registry.write(lambda s: schedules.add(s, DAILY))

    async def fire(what: str, due_s: float, schedule_id: str = "s1") -> bool:
        acts = partial(schedules.fire, acts=True)
        return await registry.write(lambda s: acts(s, schedule_id, what, due_s))

    assert await fire("load", 100.0)
    assert not await fire("load", 100.0)
    assert not await fire("load", 40.0)
    assert await fire("load", 200.0)
    assert await fire("unload", 150.0)
    assert not await fire("load", 100.0, "gone")
    fired = replace(DAILY, load_fired_s=200.0, unload_fired_s=150.0)
    assert await listed(registry) == [replace(fired, pending="unload")]
    await registry.write(lambda s: schedules.settle(s, "s1"))
    assert await listed(registry) == [fired]
    assert await fire("load", 300.0)
    await registry.write(lambda s: schedules.fire(s, "s1", "unload", 350.0, acts=False))
    assert await listed(registry) == [replace(DAILY, load_fired_s=300.0, unload_fired_s=350.0)]


async def test_removing_a_node_takes_its_schedules_only(registry: Registry) -> None:
    node = NodeRecord("n1", "mini", "https://mini:1", "agent", "{}", 5.5)
    await registry.write(lambda s: nodes.add(s, node))
    for record in (DAILY, ANYWHERE):
        await registry.write(partial(schedules.add, record=record))
    await registry.write(lambda s: nodes.remove(s, "mini"))
    assert await listed(registry) == [ANYWHERE]
