from __future__ import annotations

from dataclasses import replace

import pytest

from registry import keys, teams
from registry.db import Registry
from registry.errors import Conflict, NotFound
from registry.records import TeamRecord
from tests.registry.test_keys import KEY

LAB = TeamRecord("t1", "lab", {"tokens_per_day": 5}, 1.0)


async def test_a_team_is_read_as_it_was_stored_and_changed(registry: Registry) -> None:
    await registry.write(lambda s: teams.add(s, LAB))
    changed = await registry.write(lambda s: teams.change(s, "lab", limits={}))
    assert changed == replace(LAB, limits={})
    async with registry.read() as session:
        assert await teams.list_all(session) == [changed] == [await teams.get(session, "lab")]


async def test_a_name_is_taken_until_its_team_is_deleted(registry: Registry) -> None:
    await registry.write(lambda s: teams.add(s, LAB))
    again = replace(LAB, id="t2", created_at_s=2.0)
    with pytest.raises(Conflict, match="lab"):
        await registry.write(lambda s: teams.add(s, again))
    deleted = await registry.write(lambda s: teams.change(s, "lab", deleted_at_s=3.0))
    with pytest.raises(NotFound, match="no team 'lab'"):
        await registry.write(lambda s: teams.change(s, "lab"))
    await registry.write(lambda s: teams.add(s, again))
    async with registry.read() as session:
        assert await teams.list_all(session) == [again]
        assert await teams.list_all(session, with_deleted=True) == [deleted, again]


async def test_a_team_s_keys_are_the_valid_ones(registry: Registry) -> None:
    own = replace(KEY, team_id="t1")
    await registry.write(lambda s: keys.add(s, own))
    await registry.write(lambda s: keys.add(s, replace(KEY, id="k2", name="x", digest="b" * 64)))
    async with registry.read() as session:
        assert await keys.of_team(session, "t1") == [own]
    await registry.write(lambda s: keys.revoke(s, "ci", 2.0))
    async with registry.read() as session:
        assert await keys.of_team(session, "t1") == []
