from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from node.protocol.ids import owner_mark
from registry.records import KeyRecord, TeamRecord
from router.auth import (
    SCOPE_ADMIN,
    SCOPE_INFERENCE,
    KeyRing,
    caller_of,
    day_tokens,
    digest,
    key_from_headers,
    new_key,
    new_salt,
)
from router.errors import Forbidden, Unauthorized
from router.quotas import Limits
from router.types import Priority
from tests.fakes import FakeClock

KEY = "mlxf-00"
RECORD = KeyRecord(
    id="k1",
    name="ann",
    prefix="mlxf-00",
    digest=digest(KEY),
    scopes=(SCOPE_INFERENCE,),
    created_at_s=1.0,
    expires_at_s=None,
    revoked_at_s=None,
)


def test_a_new_key_has_128_random_bits_a_visible_prefix_and_its_sha256() -> None:
    key, prefix, stored = new_key()
    assert len(bytes.fromhex(key.removeprefix("mlxf-"))) == 16
    assert key.startswith(prefix) and len(prefix) == 11
    assert stored == hashlib.sha256(key.encode()).hexdigest()
    assert new_key()[0] != key


def test_a_new_salt_has_128_random_bits() -> None:
    assert len(bytes.fromhex(new_salt())) == 16
    assert new_salt() != new_salt()


def test_a_caller_has_the_class_and_the_salt_of_its_key() -> None:
    assert (caller_of(RECORD).priority, caller_of(RECORD).salt) == (Priority.DEFAULT, "")
    salted = caller_of(replace(RECORD, salt="s"))
    assert (salted.priority, salted.salt) == (Priority.DEFAULT, "s")
    for each in Priority:
        assert caller_of(replace(RECORD, priority=each.name.lower())).priority is each


def test_a_valid_key_gives_its_caller() -> None:
    assert KeyRing([RECORD]).check(KEY, SCOPE_INFERENCE) == caller_of(RECORD)


@pytest.mark.parametrize("key", [None, "", "mlxf-01", KEY + " "])
def test_a_missing_or_wrong_key_is_unauthorized(key: str | None) -> None:
    with pytest.raises(Unauthorized, match="router keys create"):
        KeyRing([RECORD]).check(key, SCOPE_INFERENCE)


def test_a_key_without_the_scope_is_forbidden() -> None:
    with pytest.raises(Forbidden, match="'admin'"):
        KeyRing([RECORD]).check(KEY, SCOPE_ADMIN)


def test_either_of_two_scopes_is_enough() -> None:
    caller = KeyRing([RECORD]).check(KEY, SCOPE_ADMIN, SCOPE_INFERENCE)
    assert caller.key_id == "k1"
    with pytest.raises(Forbidden):
        KeyRing([replace(RECORD, scopes=())]).check(KEY, SCOPE_ADMIN, SCOPE_INFERENCE)


def test_a_caller_s_ids_begin_with_its_key_s_mark() -> None:
    assert caller_of(RECORD).owner == owner_mark("k1")
    assert caller_of(replace(RECORD, id="k2")).owner != owner_mark("k1")


def test_a_key_ends_at_its_expiry() -> None:
    clock = FakeClock(100.0)
    ring = KeyRing([replace(RECORD, expires_at_s=101.0)], clock=clock)
    ring.check(KEY, SCOPE_INFERENCE)
    clock.advance(1.0)
    with pytest.raises(Unauthorized, match="expired"):
        ring.check(KEY, SCOPE_INFERENCE)


def test_revoked_and_removed_keys_are_unauthorized() -> None:
    ring = KeyRing([replace(RECORD, revoked_at_s=1.0)])
    with pytest.raises(Unauthorized):
        ring.check(KEY, SCOPE_INFERENCE)
    ring.add(RECORD)
    ring.check(KEY, SCOPE_INFERENCE)
    ring.add(replace(RECORD, revoked_at_s=1.0))
    with pytest.raises(Unauthorized):
        ring.check(KEY, SCOPE_INFERENCE)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bearer  abc ")], "abc"),
        ([(b"x-api-key", b" abc ")], "abc"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"xyz")], "xyz"),
        ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"xyz")], "abc"),
        ([(b"x-api-key", b"xyz"), (b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"cookie", b"abc")], None),
        ([(b"authorization", b"Bearer \xff")], "\xff"),
        ([], None),
    ],
)
def test_the_key_is_read_from_either_header(
    headers: list[tuple[bytes, bytes]], key: str | None
) -> None:
    assert key_from_headers(headers) == key


LAB = TeamRecord("t1", "lab", {"tokens_per_day": 5}, 1.0)


def test_a_caller_has_the_limits_of_its_key_and_of_its_team() -> None:
    assert caller_of(RECORD).quotas == ()
    record = replace(RECORD, team_id="t1", limits={"requests_per_minute": 2})
    ring = KeyRing([record], [LAB])
    own, shared = ring.check(KEY, SCOPE_INFERENCE).quotas
    assert (own.subject, own.limits) == ("key:k1", Limits(requests_per_minute=2))
    assert (shared.subject, shared.limits) == ("team:t1", Limits(tokens_per_day=5))
    ring.put_team(replace(LAB, limits={}))
    assert ring.check(KEY, SCOPE_INFERENCE).quotas == (own,)
    ring.remove_team("t1")
    ring.add(record)
    assert ring.check(KEY, SCOPE_INFERENCE).quotas == (own,)


def test_a_rotated_key_s_old_secret_ends_after_its_grace_or_with_the_key() -> None:
    clock = FakeClock(100.0)
    rotated = replace(
        RECORD, digest=digest("mlxf-new"), old_digest=RECORD.digest, old_until_s=110.0
    )
    ring = KeyRing([RECORD], clock=clock)
    ring.add(rotated)
    assert ring.check(KEY, SCOPE_INFERENCE).key_id == "k1"
    clock.advance(10.0)
    with pytest.raises(Unauthorized):
        ring.check(KEY, SCOPE_INFERENCE)
    ring.check("mlxf-new", SCOPE_INFERENCE)
    ring.add(replace(rotated, old_until_s=200.0, expires_at_s=150.0))
    ring.check(KEY, SCOPE_INFERENCE)
    clock.advance(40.0)
    with pytest.raises(Unauthorized):
        ring.check(KEY, SCOPE_INFERENCE)
    ring.add(replace(rotated, old_until_s=1000.0))
    ring.check(KEY, SCOPE_INFERENCE)
    ring.add(replace(rotated, old_until_s=1000.0, revoked_at_s=160.0))
    for key in (KEY, "mlxf-new"):
        with pytest.raises(Unauthorized):
            ring.check(key, SCOPE_INFERENCE)


def test_a_replaced_record_leaves_no_digest_behind() -> None:
    ring = KeyRing([RECORD])
    ring.add(replace(RECORD, digest=digest("mlxf-new")))
    with pytest.raises(Unauthorized):
        ring.check(KEY, SCOPE_INFERENCE)


def test_the_tokens_of_a_day_are_summed_by_what_limits_them() -> None:
    limited = replace(RECORD, limits={"tokens_per_day": 9}, team_id="t1")
    other = replace(RECORD, id="k2", team_id="t1", revoked_at_s=1.0)
    free = replace(RECORD, id="k3")
    used = {"k1": 1, "k2": 20, "k3": 300}
    assert day_tokens([limited, other, free], [LAB], used) == {"key:k1": 1, "team:t1": 21}
