"""`/admin/keys`, `/admin/usage`, `/admin/audit`."""

import asyncio
from typing import Any

import httpx
import pytest

from registry import usage
from registry.errors import RegistryFull
from registry.records import UsageRecord
from router.errors import RouterError
from router.types import Priority
from tests.router.api.conftest import (
    World,
    message,
)

# --- keys ---


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(
    world: World, api: httpx.AsyncClient
) -> None:
    made = (await api.post("/keys", json={"name": "ci", "scopes": ["inference"]})).json()
    assert world.ring.check(made["key"], "inference").name == "ci"
    listed = (await api.get("/keys")).text
    assert made["key"] not in listed
    assert "digest" not in listed
    assert made["prefix"] in listed
    assert (await api.delete("/keys/ci")).json()["revoked_at_s"] is not None
    with pytest.raises(RouterError):
        world.ring.check(made["key"], "inference")
    assert [verb for _, verb, _, _ in await world.audited()] == ["key.revoke", "key.create"]
    assert made["key"] not in str(await world.audited())


async def test_a_key_may_expire(api: httpx.AsyncClient) -> None:
    made = (await api.post("/keys", json={"name": "ci", "expires_in_days": 2})).json()
    assert made["expires_at_s"] - made["created_at_s"] == 2 * 86_400
    for days in ("0", "-1", "1e9", "NaN", "Infinity"):
        body = f'{{"name": "x", "expires_in_days": {days}}}'
        response = await api.post(
            "/keys", content=body, headers={"content-type": "application/json"}
        )
        assert message(response, 400).startswith("expires_in_days")


async def test_a_key_has_a_class_and_may_be_isolated(world: World, api: httpx.AsyncClient) -> None:
    plain = (await api.post("/keys", json={"name": "plain"})).json()
    assert (plain["priority"], plain["isolated"]) == ("default", False)
    assert world.ring.check(plain["key"], "inference").salt == ""
    body = {"name": "own", "priority": "interactive", "isolate": True}
    made = (await api.post("/keys", json=body)).json()
    assert (made["priority"], made["isolated"]) == ("interactive", True)
    caller = world.ring.check(made["key"], "inference")
    assert caller.priority is Priority.INTERACTIVE
    assert len(caller.salt) == 32
    listed = (await api.get("/keys")).text
    assert '"isolated":true' in listed
    audited = str(await world.audited())
    assert "for inference, external; interactive, isolated" in audited
    assert caller.salt not in str(made) + listed + audited


async def test_a_key_that_cannot_be_is_refused(api: httpx.AsyncClient) -> None:
    assert "'root'" in message(await api.post("/keys", json={"name": "x", "scopes": ["root"]}), 400)
    assert message(await api.post("/keys", json={"name": "x", "scopes": []}), 400)
    assert message(await api.post("/keys", json={"name": "a b"}), 400)
    refused = await api.post("/keys", json={"name": "x", "priority": "best"})
    assert (
        message(refused, 400) == "The classes are interactive, default and batch; 'best' is none."
    )
    assert "taken" in message(await api.post("/keys", json={"name": "boss"}), 409)
    assert message(await api.delete("/keys/nobody"), 404)


async def test_a_key_s_name_may_contain_slashes(api: httpx.AsyncClient) -> None:
    assert (await api.post("/keys", json={"name": "team/ci"})).status_code == 201
    assert (await api.delete("/keys/team/ci")).json()["name"] == "team/ci"


async def test_the_last_admin_key_cannot_be_revoked(world: World, api: httpx.AsyncClient) -> None:
    assert "last key" in message(await api.delete("/keys/boss"), 409)
    assert (await api.get("/keys")).json()[0]["revoked_at_s"] is None
    await api.post("/keys", json={"name": "second", "scopes": ["admin"]})
    assert (await api.delete("/keys/boss")).status_code == 200


# --- limits, models, changes ---


async def test_a_key_has_limits_models_and_a_team(world: World, api: httpx.AsyncClient) -> None:
    await api.post("/teams", json={"name": "lab", "limits": {"concurrent_requests": 3}})
    body = {
        "name": "ci",
        "team": "lab",
        "models": ["qwen*", "fast"],
        "limits": {"requests_per_minute": 2, "tokens_per_minute": None},
    }
    made = (await api.post("/keys", json=body)).json()
    assert (made["team"], made["models"]) == ("lab", ["qwen*", "fast"])
    assert {name: most for name, most in made["limits"].items() if most} == {
        "requests_per_minute": 2
    }
    caller = world.ring.check(made["key"], "inference")
    assert caller.models == ("qwen*", "fast")
    assert [quota.subject.partition(":")[0] for quota in caller.quotas] == ["key", "team"]
    shown = (await api.get("/keys/ci")).json()
    use = {"requests_left": 2, "tokens_left": None, "tokens_today": 0, "open_requests": 0}
    assert shown["use"] == use and "key" not in shown
    detail = (await world.audited())[0][3]
    assert detail.endswith("default; team lab; models qwen*, fast; 2 requests per minute"), detail


async def test_a_change_keeps_what_is_not_given(world: World, api: httpx.AsyncClient) -> None:
    limits = {"requests_per_minute": 2, "tokens_per_day": 9}
    made = (await api.post("/keys", json={"name": "ci", "limits": limits})).json()
    changed = await api.patch("/keys/ci", json={"limits": {"tokens_per_day": None}})
    assert changed.json()["limits"]["requests_per_minute"] == 2
    assert changed.json()["limits"]["tokens_per_day"] is None
    await api.patch("/keys/ci", json={"models": ["m"], "priority": "batch", "expires_in_days": 1})
    row = (await api.patch("/keys/ci", json={"scopes": ["metrics"]})).json()
    assert (row["models"], row["priority"], row["scopes"]) == (["m"], "batch", ["metrics"])
    assert row["expires_at_s"] > row["created_at_s"]
    with pytest.raises(RouterError, match="lacks the scope 'inference'"):
        world.ring.check(made["key"], "inference")
    row = (await api.patch("/keys/ci", json={"models": None, "expires_in_days": None})).json()
    assert (row["models"], row["expires_at_s"]) == (None, None)
    (entry, *_rest) = await world.audited()
    assert entry[1:] == ("key.update", "ci", "expires_in_days none, models none")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "nothing to change"),
        ({"name": "x"}, "name"),
        ({"limits": {"requests_per_minute": 0}}, "limits.requests_per_minute"),
        ({"limits": {"requests": 1}}, "limits.requests"),
        ({"limits": {"tokens_per_day": 10**13}}, "limits.tokens_per_day"),
        ({"models": []}, "models"),
        ({"models": ["a\nb"]}, "models.0"),
        ({"scopes": []}, "at least one"),
        ({"priority": "best"}, "'best'"),
    ],
)
async def test_a_change_that_cannot_be_is_refused(
    api: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    await api.post("/keys", json={"name": "ci"})
    assert words in message(await api.patch("/keys/ci", json=body), 400)


async def test_a_team_or_key_that_is_not_there_is_named(api: httpx.AsyncClient) -> None:
    assert "no team 'lab'" in message(
        await api.post("/keys", json={"name": "x", "team": "lab"}), 404
    )
    assert "no team 'lab'" in message(await api.patch("/keys/boss", json={"team": "lab"}), 404)
    assert "no key 'x'" in message(await api.get("/keys/x"), 404)
    assert "no key 'x'" in message(await api.patch("/keys/x", json={"team": None}), 404)
    assert "no key 'x'" in message(await api.post("/keys/rotate", json={"key": "x"}), 404)


async def test_the_last_admin_key_keeps_its_scope(api: httpx.AsyncClient) -> None:
    assert "last key" in message(await api.patch("/keys/boss", json={"scopes": ["metrics"]}), 409)
    assert (await api.get("/keys/boss")).json()["scopes"] == ["admin", "inference"]


async def test_a_rotated_key_is_the_same_key_with_another_secret(
    world: World, api: httpx.AsyncClient
) -> None:
    old = (await api.post("/keys", json={"name": "ci", "limits": {"tokens_per_day": 5}})).json()
    new = (await api.post("/keys/rotate", json={"key": "ci"})).json()
    assert (new["id"], new["name"], new["limits"]) == (old["id"], "ci", old["limits"])
    assert new["key"] != old["key"] and new["old_prefix"] == old["prefix"]
    with pytest.raises(RouterError):
        world.ring.check(old["key"], "inference")
    next_ = (await api.post("/keys/rotate", json={"key": old["id"], "grace_s": 3600})).json()
    for key in (new["key"], next_["key"]):
        assert world.ring.check(key, "inference").key_id == old["id"]
    assert 3500 < next_["old_until_s"] - next_["rotated_at_s"] <= 3600
    listed = (await api.get("/keys")).text
    audited = str(await world.audited())
    assert "in 3,600 s" in audited
    for secret in (old["key"], new["key"], next_["key"]):
        assert secret not in listed + audited


async def test_a_slow_change_does_not_undo_a_revocation(
    world: World, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await api.post("/keys", json={"name": "ci"})).json()
    reads, revoked = asyncio.Event(), asyncio.Event()

    async def tokens(_session: object, _since_s: float) -> dict[str, int]:
        reads.set()
        await revoked.wait()
        return {}

    monkeypatch.setattr(usage, "tokens", tokens)
    limits = {"limits": {"tokens_per_day": 5}}
    change = asyncio.create_task(api.patch("/keys/ci", json=limits))
    await reads.wait()
    assert (await api.delete("/keys/ci")).status_code == 200
    revoked.set()
    await change
    with pytest.raises(RouterError):
        world.ring.check(made["key"], "inference")


# --- teams ---


async def test_a_team_is_made_changed_and_deleted(world: World, api: httpx.AsyncClient) -> None:
    made = await api.post("/teams", json={"name": "lab", "limits": {"tokens_per_day": 5}})
    assert made.status_code == 201 and made.json()["limits"]["tokens_per_day"] == 5
    assert "taken" in message(await api.post("/teams", json={"name": "lab"}), 409)
    await api.post("/keys", json={"name": "ann", "team": "lab"})
    changed = await api.patch("/teams/lab", json={"limits": {"requests_per_minute": 7}})
    assert (changed.json()["keys"], changed.json()["limits"]["tokens_per_day"]) == (["ann"], 5)
    assert "still has the key ann;" in message(await api.delete("/teams/lab"), 409)
    await api.delete("/keys/ann")
    assert (await api.delete("/teams/lab")).json()["name"] == "lab"
    assert (await api.get("/teams")).json() == []
    assert "no team" in message(await api.patch("/teams/lab", json={"limits": {}}), 404)
    (key,) = [row for row in (await api.get("/keys")).json() if row["name"] == "ann"]
    assert key["team"] == "lab"
    verbs = [(verb, detail) for _, verb, _, detail in await world.audited()]
    assert ("team.update", "requests_per_minute=7") in verbs
    assert ("team.create", "5 tokens per day") in verbs and ("team.delete", "") in verbs


async def test_a_key_leaves_its_team(world: World, api: httpx.AsyncClient) -> None:
    await api.post("/teams", json={"name": "lab", "limits": {"tokens_per_day": 5}})
    made = (await api.post("/keys", json={"name": "ann", "team": "lab"})).json()
    assert (await api.patch("/keys/ann", json={"team": None})).json()["team"] is None
    assert world.ring.check(made["key"], "inference").quotas == ()


@pytest.mark.parametrize("name", ["a b", "", "x" * 65, "a\u202eb"])
async def test_a_team_s_name_is_checked_like_others(api: httpx.AsyncClient, name: str) -> None:
    assert message(await api.post("/teams", json={"name": name}), 400).startswith("name")


# --- reports ---


async def test_usage_names_the_keys(world: World, api: httpx.AsyncClient) -> None:
    def row(request_id: str, key_id: str, at_s: float) -> UsageRecord:
        return UsageRecord(
            request_id, "n", "i", 1, key_id, "tiny", "stop", 5, 1, 7, 0, 0.1, 0.1, 0.1, 0.1, at_s
        )

    rows = [row("a", "id-boss", 10.0), row("b", "id-boss", 20.0), row("c", "gone", 20.0)]
    await world.registry.write(lambda session: usage.add_many(session, rows))
    totals: list[dict[str, Any]] = (await api.get("/usage")).json()
    assert [(total["key"], total["requests"]) for total in totals] == [("gone", 1), ("boss", 2)]
    later = (await api.get("/usage", params={"since_s": 15})).json()
    assert [total["completion_tokens"] for total in later] == [7, 7]


async def test_audit_is_newest_first_and_limited(api: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await api.post("/keys", json={"name": name})
    entries = (await api.get("/audit", params={"limit": 2})).json()
    assert [entry["subject"] for entry in entries] == ["c", "b"]
    assert message(await api.get("/audit", params={"limit": 0}), 400).startswith("limit")


async def test_a_registry_that_cannot_be_written_is_shown(
    world: World, api: httpx.AsyncClient
) -> None:
    sound = {"error": None, "failing_s": 0.0, "waiting_rows": 0, "lost_rows": 0}
    assert (await api.get("/registry")).json() == sound
    world.registry.trouble.on_write(RegistryFull(world.registry.path))
    row = (await api.get("/registry")).json()
    assert "is full; make room on it." in row["error"] and row["failing_s"] >= 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/usage?since_s=nan", "since_s"),
        ("/usage?since_s=inf", "since_s"),
        ("/usage?since_s=-1", "since_s"),
        ("/usage?since=nan", "no parameter 'since'; it accepts by and since_s and until_s."),
        ("/audit?limit=nan", "limit"),
        ("/nodes?x=1", "no parameter 'x'; it accepts none."),
    ],
)
async def test_a_query_without_meaning_is_refused(
    api: httpx.AsyncClient, path: str, words: str
) -> None:
    assert words in message(await api.get(path), 400)
