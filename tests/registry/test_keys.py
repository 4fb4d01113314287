from __future__ import annotations

from dataclasses import replace

import pytest

from registry import keys
from registry.db import Registry
from registry.errors import Conflict, NotFound, RegistryFailed
from registry.records import KeyRecord

KEY = KeyRecord("k1", "ci", "mf-ab", "a" * 64, ("inference", "models"), 1.0, None, None)
NEXT = replace(KEY, id="k2", digest="b" * 64, created_at_s=2.0, expires_at_s=9.5)


async def test_a_key_is_read_as_it_was_stored(registry: Registry) -> None:
    assert await registry.write(lambda s: keys.add(s, KEY)) == KEY
    async with registry.read() as session:
        assert await keys.get(session, "ci") == KEY


async def test_a_key_keeps_its_class_and_its_salt(registry: Registry) -> None:
    salted = replace(KEY, priority="batch", salt="s4lt")
    await registry.write(lambda s: keys.add(s, salted))
    async with registry.read() as session:
        assert await keys.list_all(session) == [salted]
    revoked = await registry.write(lambda s: keys.revoke(s, "ci", 3.0))
    assert revoked == replace(salted, revoked_at_s=3.0)


async def test_a_name_is_taken_until_its_key_is_revoked(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    with pytest.raises(Conflict) as conflict:
        await registry.write(lambda s: keys.add(s, NEXT))
    assert (conflict.value.what, conflict.value.name) == ("key name", "ci")
    await registry.write(lambda s: keys.revoke(s, "ci", 3.0))
    await registry.write(lambda s: keys.add(s, NEXT))
    async with registry.read() as session:
        assert await keys.get(session, "ci") == NEXT
        assert await keys.list_all(session) == [replace(KEY, revoked_at_s=3.0), NEXT]


@pytest.mark.parametrize("which", ["k1", "ci"])
async def test_a_key_is_revoked_by_id_or_by_name(registry: Registry, which: str) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    revoked = await registry.write(lambda s: keys.revoke(s, which, 3.0))
    assert revoked == replace(KEY, revoked_at_s=3.0)
    async with registry.read() as session:
        with pytest.raises(NotFound):
            await keys.get(session, "ci")


async def test_an_id_goes_before_another_keys_name(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    await registry.write(lambda s: keys.add(s, replace(NEXT, name="k1")))
    assert (await registry.write(lambda s: keys.revoke(s, "k1", 3.0))).id == "k1"


async def test_a_second_revocation_keeps_the_first_time(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    await registry.write(lambda s: keys.revoke(s, "k1", 3.0))
    assert (await registry.write(lambda s: keys.revoke(s, "k1", 4.0))).revoked_at_s == 3.0


async def test_a_key_that_is_revoked_again_by_name_is_the_one_that_was_revoked_last(
    registry: Registry,
) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    await registry.write(lambda s: keys.revoke(s, "ci", 3.0))
    await registry.write(lambda s: keys.add(s, NEXT))
    await registry.write(lambda s: keys.revoke(s, "ci", 5.0))
    again = await registry.write(lambda s: keys.revoke(s, "ci", 9.0))
    assert (again.id, again.revoked_at_s) == (NEXT.id, 5.0)


async def test_an_unknown_key_is_not_found(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no key 'ci'"):
        await registry.write(lambda s: keys.revoke(s, "ci", 1.0))


async def test_two_keys_never_share_a_digest(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    same = replace(NEXT, name="other", digest=KEY.digest)
    with pytest.raises(RegistryFailed, match=r"keys\.digest"):
        await registry.write(lambda s: keys.add(s, same))


async def test_a_budget_is_given_changed_and_taken_by_id_or_name(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    given = await registry.write(lambda s: keys.change(s, "ci", paid_budget=20.0))
    assert given == replace(KEY, paid_budget=20.0)
    assert (
        await registry.write(lambda s: keys.change(s, "k1", paid_budget=0.5))
    ).paid_budget == 0.5
    assert await registry.write(lambda s: keys.change(s, "ci", paid_budget=None)) == KEY


async def test_a_revoked_key_gets_no_budget(registry: Registry) -> None:
    await registry.write(lambda s: keys.add(s, KEY))
    await registry.write(lambda s: keys.revoke(s, "k1", 3.0))
    with pytest.raises(NotFound, match="no key 'k1'"):
        await registry.write(lambda s: keys.change(s, "k1", paid_budget=1.0))


async def test_a_key_keeps_its_models_and_limits(registry: Registry) -> None:
    record = replace(KEY, models=("qwen*", "fast"), limits={"requests_per_minute": 3})
    await registry.write(lambda s: keys.add(s, record))
    async with registry.read() as session:
        assert await keys.find(session, "k1") == record == await keys.find(session, "ci")
    free = await registry.write(lambda s: keys.change(s, "ci", models=None, limits={}))
    assert free == KEY
    assert await registry.write(lambda s: keys.change(s, "ci")) == KEY
