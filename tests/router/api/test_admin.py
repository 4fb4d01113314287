"""The admin API over a real registry; nodes are played."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from node.protocol.lifecycle import Policies
from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from node.protocol.prefix import Chainer
from registry import audit, keys, nodes, residency, usage
from registry.db import Registry, WriteSession
from registry.migrate import open_migrated
from registry.records import KeyRecord, NodeRecord, ResidencyRecord, UsageRecord
from router.api import admin_nodes
from router.api.admin import admin_routes
from router.auth import KeyRing, new_key
from router.budgets import Budgets
from router.core import Core
from router.credentials import NodeCredential
from router.dispatcher import Dispatcher
from router.errors import NodeRefused, NodeUnreachable, RouterError, WrongNodeToken
from router.fleet import Fleet
from router.last_targets import LastTargets
from router.ledger import Ledger
from router.lifecycle.lifecycle import Lifecycle, Outside
from router.metrics import Metrics
from router.names import Names
from router.prefix_index import PrefixIndex
from router.scheduler.breaker import Breaker
from router.settings import Settings
from router.types import Priority
from router.watcher import FOREIGN_ROWS, Watcher, foreign_status

GIB = 1024**3


def a_model(name: str, state: ModelState = ModelState.ON_DISK) -> ModelStatus:
    return ModelStatus(name=name, state=state, weight_bytes=GIB, context_tokens=4096)


def a_status(node_id: str, *models: ModelStatus, free: int = 8 * GIB) -> NodeStatus:
    return NodeStatus(
        protocol=1,
        node_id=node_id,
        instance_id="i",
        version="0.1.0",
        engine="scripted",
        chip="M4",
        memory_budget_bytes=16 * GIB,
        memory_leased_bytes=16 * GIB - free,
        models=models,
    )


@dataclass
class PlayedNode:
    """What answers at one address: a status, or a failure."""

    status: NodeStatus
    token: str = ""
    failure: RouterError | None = None
    refuses: str | None = None
    orders: list[str] = field(default_factory=list)


@dataclass
class PlayedClient:
    node: PlayedNode
    token: str = ""

    async def __aenter__(self) -> "PlayedClient":
        return self

    async def __aexit__(self, *_error: object) -> None:
        return

    async def status(self) -> NodeStatus:
        if self.node.failure:
            raise self.node.failure
        if self.token != self.node.token:
            raise WrongNodeToken
        return self.node.status

    async def foreign_models(self) -> list[str]:
        return [model.name for model in (await self.status()).models]

    async def load(self, model: str) -> None:
        await self._order("load", model)

    async def unload(self, model: str) -> None:
        await self._order("unload", model)

    async def set_policies(self, policies: Policies) -> None:
        assert not policies.models

    async def _order(self, verb: str, model: str) -> None:
        if self.node.refuses:
            raise NodeRefused(self.node.refuses)
        self.node.orders.append(f"{verb} {model}")


class World:
    """A fleet whose nodes are played, and an admin's connection to it."""

    def __init__(self, registry: Registry, admin_key: str, ring: KeyRing) -> None:
        self.played: dict[str, PlayedNode] = {}
        self.records: dict[str, NodeRecord] = {}
        self.registry = registry
        self.fleet = Fleet()
        self.names = Names(self.fleet)
        self.budgets = Budgets(self.fleet, {}, time.time)
        self.ring = ring
        self.admin_key = admin_key
        self.forgotten: list[str] = []

    def play(self, url: str, node: PlayedNode) -> PlayedNode:
        self.played[url] = node
        return node

    # --- what the core sees of it ---

    def open(self, url: str, credential: NodeCredential, kind: str) -> PlayedClient:
        return PlayedClient(self.played[url], credential.token)

    async def watch(self, record: NodeRecord) -> None:
        self.records[record.id] = record
        self.fleet.add(record)
        node = self.played[record.url]
        if node.failure:
            self.fleet.lost(record.id, node.failure.message)
        elif record.kind == "openai":
            names = [model.name for model in node.status.models]
            self.fleet.heard(record.id, foreign_status(record, names))
        else:
            self.fleet.heard(record.id, node.status)

    async def unwatch(self, node_id: str) -> None:
        del self.records[node_id]
        self.fleet.remove(node_id)

    def client(self, node_id: str) -> PlayedClient | None:
        record = self.records.get(node_id)
        return PlayedClient(self.played[record.url]) if record else None

    def breakers(self) -> list[Breaker]:
        return []

    def in_flight(self, node_id: str) -> int:
        return 3 if node_id in self.records else 0

    def forget(self, node_id: str) -> None:
        self.forgotten.append(node_id)

    def core(self, home: Path) -> Core:
        return Core(
            settings=Settings(home=home),
            router_id="r",
            registry=self.registry,
            keys=self.ring,
            fleet=self.fleet,
            names=self.names,
            last_targets=LastTargets(),
            budgets=self.budgets,
            prefixes=PrefixIndex(),
            ledger=Ledger("r"),
            metrics=Metrics(str),
            chainer=Chainer(),
            watcher=cast(Watcher, self),
            dispatcher=cast(Dispatcher, self),
            lifecycle=Lifecycle(
                Outside(self.registry, self.fleet, cast(Watcher, self), frozenset, "r")
            ),
        )

    async def audited(self) -> list[tuple[str, str, str, str]]:
        async with self.registry.read() as session:
            entries = await audit.recent(session, 50)
        return [(entry.actor, entry.verb, entry.subject, entry.detail) for entry in entries]


def a_key(name: str, *scopes: str, expires_at_s: float | None = None) -> tuple[str, KeyRecord]:
    key, prefix, digest = new_key()
    return key, KeyRecord(f"id-{name}", name, prefix, digest, scopes, 1.0, expires_at_s, None)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    registry = await open_migrated(tmp_path / "registry.db")
    key, record = a_key("boss", "admin", "inference")
    await registry.write(lambda session: keys.add(session, record))
    made = World(registry, key, KeyRing([record]))
    monkeypatch.setattr(admin_nodes, "NodeClient", made.open)
    yield made
    await registry.close()


@asynccontextmanager
async def connected(world: World, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(admin_routes(lambda: world.core(Path())))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://router/admin", headers=headers
    ) as client:
        yield client


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with connected(world, world.admin_key) as client:
        yield client


def message(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


async def added(world: World, api: httpx.AsyncClient, name: str, *models: ModelStatus) -> None:
    url = f"http://127.0.0.1:{9000 + len(world.played)}"
    world.play(url, PlayedNode(a_status(f"id-{name}", *models)))
    response = await api.post("/nodes", json={"url": url, "name": name})
    assert response.status_code == 201, response.text


# --- the gate ---


async def test_every_route_needs_a_key(world: World) -> None:
    async with connected(world, None) as client:
        for path in ("/nodes", "/models", "/aliases", "/keys", "/usage", "/audit"):
            assert "key" in message(await client.get(path), 401)
        assert (await client.post("/nodes", content=b"{")).status_code == 401
        assert (await client.delete("/keys/boss")).status_code == 401


async def test_a_key_without_the_scope_admin_is_refused(world: World) -> None:
    key, record = a_key("guest", "inference")
    world.ring.add(record)
    async with connected(world, key) as client:
        assert "admin" in message(await client.get("/nodes"), 403)


async def test_a_wrong_body_is_a_sentence_with_the_field(api: httpx.AsyncClient) -> None:
    response = await api.post("/nodes", json={"kind": "agent"})
    assert message(response, 400).startswith("url: ")
    assert response.json()["error"]["param"] == "url"
    assert "colour" in message(await api.post("/nodes", json={"url": "x", "colour": 1}), 400)
    response = await api.post("/nodes", content=b"{", headers={"content-type": "application/json"})
    assert message(response, 400)


# --- nodes ---


async def test_a_node_is_contacted_stored_and_watched(world: World, api: httpx.AsyncClient) -> None:
    world.play("http://127.0.0.1:8801", PlayedNode(a_status("n1", a_model("tiny")), token="t"))
    response = await api.post("/nodes", json={"url": "127.0.0.1:8801/", "token": " t\n"})
    assert response.status_code == 201
    row = response.json()
    assert (row["id"], row["name"], row["reachable"]) == ("n1", "127.0.0.1", True)
    assert row["models"] == [{"name": "tiny", "state": "on_disk"}]
    assert row["in_flight"] == 3
    assert (await api.get("/nodes")).json()[0]["chip"] == "M4"
    assert await world.audited() == [
        ("boss", "node.add", "127.0.0.1", "agent http://127.0.0.1:8801")
    ]
    async with world.registry.read() as session:
        [record] = await nodes.list_all(session)
    assert NodeCredential.from_text(record.credential).token == "t"


async def test_no_answer_ever_holds_a_token(world: World, api: httpx.AsyncClient) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("n1"), token="secret-token"))
    asked = {"url": "http://127.0.0.1:1", "token": "secret-token"}
    texts = [(await api.post("/nodes", json=asked)).text, (await api.get("/nodes")).text]
    texts += [str(await world.audited()), (await api.post("/nodes", json=asked)).text]
    assert not any("secret-token" in text for text in texts)


@pytest.mark.parametrize(
    ("failure", "status"),
    [(WrongNodeToken(), 502), (NodeUnreachable("Nobody is there."), 502)],
)
async def test_a_node_that_does_not_answer_is_not_stored(
    world: World, api: httpx.AsyncClient, failure: RouterError, status: int
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("n1"), failure=failure))
    response = await api.post("/nodes", json={"url": "http://127.0.0.1:1"})
    assert message(response, status) == failure.message
    assert (await api.get("/nodes")).json() == []
    assert await world.audited() == []


async def test_plain_http_to_another_machine_must_be_allowed(
    world: World, api: httpx.AsyncClient
) -> None:
    world.play("http://mini.local:8801", PlayedNode(a_status("n1")))
    asked = {"url": "http://mini.local:8801"}
    assert "--allow-plain-http" in message(await api.post("/nodes", json=asked), 400)
    response = await api.post("/nodes", json={**asked, "allow_plain_http": True})
    assert response.json()["name"] == "mini.local"


@pytest.mark.parametrize("name", ["", "Über", "-mini", "a b", "x" * 64, "a/b"])
async def test_a_node_name_that_is_none_is_refused(api: httpx.AsyncClient, name: str) -> None:
    response = await api.post("/nodes", json={"url": "http://127.0.0.1:1", "name": name})
    assert message(response, 400).startswith("name: ")


async def test_a_taken_name_address_or_agent_says_whose_it_is(
    world: World, api: httpx.AsyncClient
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("n1")))
    world.play("http://127.0.0.1:2", PlayedNode(a_status("n1")))
    await api.post("/nodes", json={"url": "http://127.0.0.1:1", "name": "mini"})
    by_name = await api.post("/nodes", json={"url": "http://127.0.0.1:2", "name": "mini"})
    by_url = await api.post("/nodes", json={"url": "http://127.0.0.1:1", "name": "other"})
    by_agent = await api.post("/nodes", json={"url": "http://127.0.0.1:2", "name": "other"})
    for response in (by_name, by_url, by_agent):
        assert "'mini'" in message(response, 409)


async def test_default_names_are_unique() -> None:
    assert admin_nodes.default_name("http://Mini.local:1", set()) == "mini.local"
    taken = {"mini.local", "mini.local-2"}
    assert admin_nodes.default_name("http://mini.local:1", taken) == "mini.local-3"
    assert admin_nodes.default_name("http://[::1]:1", set()) == "1"
    assert len(admin_nodes.default_name(f"http://{'x' * 90}:1", {"x" * 59})) <= 63


@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
async def test_a_foreign_server_is_a_node_with_an_id_of_ours(
    world: World, api: httpx.AsyncClient, path: str
) -> None:
    world.play("http://127.0.0.1:11434", PlayedNode(a_status("?", a_model("llama"))))
    asked = {"url": "http://127.0.0.1:11434" + path, "kind": "openai", "name": "ollama"}
    row = (await api.post("/nodes", json=asked)).json()
    assert row["url"] == "http://127.0.0.1:11434"
    assert len(row["id"]) == 16
    assert row["models"] == [{"name": "llama", "state": "ready"}]


@pytest.mark.parametrize(("asked", "rows"), [({}, FOREIGN_ROWS), ({"max_rows": 4}, 4)])
async def test_a_foreign_server_serves_as_many_requests_at_once_as_an_admin_says(
    world: World, api: httpx.AsyncClient, asked: dict[str, int], rows: int
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("?", a_model("llama"))))
    wanted = {"url": "http://127.0.0.1:1", "kind": "openai", "name": "x", **asked}
    assert (await api.post("/nodes", json=wanted)).json()["max_rows"] == asked.get("max_rows")
    (view,) = world.fleet.snapshot
    assert view.status is not None and view.status.models[0].max_rows == rows
    async with world.registry.read() as session:
        assert (await nodes.get(session, "x")).max_rows == asked.get("max_rows")


@pytest.mark.parametrize(("fields", "words"), [({}, "its own limit"), ({"kind": "openai"}, "")])
async def test_a_number_of_rows_that_cannot_be_applied_is_refused(
    world: World, api: httpx.AsyncClient, fields: dict[str, str], words: str
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("n1")))
    rows = 0 if fields else 4
    response = await api.post(
        "/nodes", json={"url": "http://127.0.0.1:1", "max_rows": rows, **fields}
    )
    assert words in message(response, 400)
    assert response.json()["error"]["param"] == "max_rows"
    assert (await api.get("/nodes")).json() == []


async def test_a_removed_node_is_watched_no_more(world: World, api: httpx.AsyncClient) -> None:
    await added(world, api, "mini")
    assert (await api.delete("/nodes/mini")).json()["name"] == "mini"
    assert (await api.get("/nodes")).json() == []
    assert world.fleet.snapshot == ()
    assert world.forgotten == ["id-mini"]
    assert (await world.audited())[0] == ("boss", "node.remove", "mini", "")
    assert "mini" in message(await api.delete("/nodes/mini"), 404)


# --- models ---


async def test_models_are_listed_with_every_place(world: World, api: httpx.AsyncClient) -> None:
    await added(world, api, "a", a_model("tiny", ModelState.READY), a_model("big"))
    await added(world, api, "b", a_model("tiny"))
    await api.put("/aliases/gpt", json={"targets": [{"model": "tiny"}]})
    big, tiny = (await api.get("/models")).json()
    assert (big["name"], tiny["name"], tiny["aliases"]) == ("big", "tiny", ["gpt"])
    assert [(place["node"], place["state"]) for place in tiny["nodes"]] == [
        ("a", "ready"),
        ("b", "on_disk"),
    ]
    assert (tiny["weight_bytes"], tiny["context_tokens"]) == (GIB, 4096)


@pytest.mark.parametrize(
    ("state", "told_s", "shown_s"),
    [("ready", None, 0.0), ("ready", 60.0, 60.0), ("failed", 60.0, None)],
)
async def test_a_model_in_memory_shows_how_long_it_is_kept_and_has_been_idle(
    world: World, api: httpx.AsyncClient, state: str, told_s: float | None, shown_s: float | None
) -> None:
    idle_s = 5.0 if state == "ready" else None
    model = a_model("tiny", ModelState(state))
    model = msgspec.structs.replace(model, keep_alive_s=told_s, idle_s=idle_s)
    await added(world, api, "a", model)
    [place] = (await api.get("/models")).json()[0]["nodes"]
    assert place["keep_alive_s"] == shown_s
    assert place["idle_s"] == (pytest.approx(idle_s, abs=2) if idle_s else None)


async def test_a_node_that_never_answered_shows_what_it_last_said(
    world: World, api: httpx.AsyncClient
) -> None:
    await added(world, api, "a", a_model("tiny"))
    [record] = world.records.values()

    async def remember(session: WriteSession) -> None:
        row = ResidencyRecord(record.id, "tiny", "ready", GIB, 1.0)
        await residency.replace_node(session, record.id, [row])

    await world.registry.write(remember)
    world.fleet.remove(record.id)
    world.fleet.add(record)
    [row] = (await api.get("/models")).json()
    assert row["nodes"][0]["reachable"] is False
    assert (row["name"], row["nodes"][0]["state"]) == ("tiny", "ready")


async def test_a_load_goes_where_most_memory_is_free(world: World, api: httpx.AsyncClient) -> None:
    for name, free in (("a", 1), ("b", 9), ("c", 5)):
        url = f"http://127.0.0.1:{9000 + len(world.played)}"
        world.play(url, PlayedNode(a_status(name, a_model("tiny"), free=free * GIB)))
        await api.post("/nodes", json={"url": url, "name": name})
    response = await api.post("/models/load", json={"model": "tiny"})
    assert response.json()["nodes"] == ["b"]
    assert (await api.post("/models/load", json={"model": "tiny", "node": "a"})).json()[
        "nodes"
    ] == ["a"]
    assert [node.orders for node in world.played.values()] == [["load tiny"], ["load tiny"], []]
    assert (await world.audited())[0] == ("boss", "model.load", "tiny", "on a")


async def test_a_load_prefers_the_node_that_has_the_model_in_memory(
    world: World, api: httpx.AsyncClient
) -> None:
    await added(world, api, "a", a_model("tiny"))
    await added(world, api, "b", a_model("tiny", ModelState.READY))
    assert (await api.post("/models/load", json={"model": "tiny"})).json()["nodes"] == ["b"]


async def test_a_load_that_cannot_be_says_why(world: World, api: httpx.AsyncClient) -> None:
    await added(world, api, "mini", a_model("tiny"), a_model("big"))
    await added(world, api, "other", a_model("big"))
    unknown = await api.post("/models/load", json={"model": "tinny"})
    assert "Did you mean tiny?" in message(unknown, 404)
    nowhere = await api.post("/models/load", json={"model": "tiny", "node": "mino"})
    assert "Did you mean mini?" in message(nowhere, 404)
    absent = await api.post("/models/load", json={"model": "tiny", "node": "other"})
    assert "does not have" in message(absent, 404)
    world.fleet.lost("id-mini", "It has gone.")
    lost = await api.post("/models/load", json={"model": "tiny", "node": "mini"})
    assert "It has gone." in message(lost, 502)
    assert message(await api.post("/models/load", json={"model": "tiny"}), 503)


async def test_an_unload_goes_to_every_node_that_holds_the_model(
    world: World, api: httpx.AsyncClient
) -> None:
    await added(world, api, "a", a_model("tiny", ModelState.READY))
    await added(world, api, "b", a_model("tiny"))
    await added(world, api, "c", a_model("tiny", ModelState.LOADING))
    response = await api.post("/models/unload", json={"model": "tiny"})
    assert response.json()["nodes"] == ["a", "c"]
    idle = await api.post("/models/unload", json={"model": "tiny", "node": "b"})
    assert "not loaded on b" in message(idle, 409)


async def test_a_busy_node_does_not_keep_the_others_from_unloading(
    world: World, api: httpx.AsyncClient
) -> None:
    await added(world, api, "a", a_model("tiny", ModelState.READY))
    await added(world, api, "b", a_model("tiny", ModelState.READY))
    next(iter(world.played.values())).refuses = "The model still serves requests."
    text = message(await api.post("/models/unload", json={"model": "tiny"}), 502)
    assert text == "a: The model still serves requests. Unloaded on b."
    assert (await world.audited())[0] == ("boss", "model.unload", "tiny", "on b")


async def test_a_foreign_server_takes_no_orders(world: World, api: httpx.AsyncClient) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("?", a_model("llama"))))
    await api.post("/nodes", json={"url": "http://127.0.0.1:1", "kind": "openai", "name": "x"})
    response = await api.post("/models/load", json={"model": "llama", "node": "x"})
    assert "not a node agent" in message(response, 400)


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
    asked = {"name": "own", "priority": "interactive", "isolate": True}
    made = (await api.post("/keys", json=asked)).json()
    assert (made["priority"], made["isolated"]) == ("interactive", True)
    caller = world.ring.check(made["key"], "inference")
    assert caller.priority is Priority.INTERACTIVE
    assert len(caller.salt) == 32
    listed = (await api.get("/keys")).text
    assert '"isolated":true' in listed
    audited = str(await world.audited())
    assert "for inference; interactive, isolated" in audited
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


async def test_a_key_s_name_may_hold_slashes(api: httpx.AsyncClient) -> None:
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
