"""`/admin/keys`, `/admin/usage`, `/admin/audit`."""

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
        ("/usage?since=nan", "no parameter 'since'; it accepts since_s."),
        ("/audit?limit=nan", "limit"),
        ("/nodes?x=1", "no parameter 'x'; it accepts none."),
    ],
)
async def test_a_query_without_meaning_is_refused(
    api: httpx.AsyncClient, path: str, words: str
) -> None:
    assert words in message(await api.get(path), 400)
