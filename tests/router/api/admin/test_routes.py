"""`/admin`: its gate, nodes and models."""

from urllib.parse import quote

import httpx
import msgspec
import pytest

from node.protocol.messages import ModelState
from registry import nodes, residency
from registry.db import WriteSession
from registry.records import ResidencyRecord
from router.errors import NodeUnreachable, RouterError, WrongNodeToken
from router.upstream.credentials import NodeCredential
from router.upstream.foreign_nodes import FOREIGN_ROWS
from tests.router.api.conftest import (
    GIB,
    PlayedNode,
    World,
    a_key,
    a_model,
    a_status,
    added,
    connected,
    message,
)

# --- the gate ---


async def test_every_route_needs_a_key(world: World) -> None:
    async with connected(world, None) as client:
        for path in ("/nodes", "/models", "/aliases", "/keys", "/usage", "/audit"):
            assert "key" in message(await client.get(path), 401)
        refused = await client.post("/nodes", content=b"{")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (401, "false")
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


async def test_no_answer_ever_contains_a_token(world: World, api: httpx.AsyncClient) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("n1"), token="secret-token"))
    body = {"url": "http://127.0.0.1:1", "token": "secret-token"}
    texts = [(await api.post("/nodes", json=body)).text, (await api.get("/nodes")).text]
    texts += [str(await world.audited()), (await api.post("/nodes", json=body)).text]
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
    body = {"url": "http://mini.local:8801"}
    assert "--allow-plain-http" in message(await api.post("/nodes", json=body), 400)
    response = await api.post("/nodes", json={**body, "allow_plain_http": True})
    assert response.json()["name"] == "mini.local"


@pytest.mark.parametrize("name", ["", "Über", "-mini", "a b", "x" * 64, "a/b"])
async def test_a_node_name_that_is_none_is_refused(api: httpx.AsyncClient, name: str) -> None:
    response = await api.post("/nodes", json={"url": "http://127.0.0.1:1", "name": name})
    assert message(response, 400).startswith("name: ")


async def test_a_taken_name_address_or_agent_is_refused_with_its_owner(
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


@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
async def test_a_foreign_server_is_a_node_with_an_id_of_ours(
    world: World, api: httpx.AsyncClient, path: str
) -> None:
    world.play("http://127.0.0.1:11434", PlayedNode(a_status("?", a_model("llama"))))
    body = {"url": "http://127.0.0.1:11434" + path, "kind": "openai", "name": "ollama"}
    row = (await api.post("/nodes", json=body)).json()
    assert row["url"] == "http://127.0.0.1:11434"
    assert len(row["id"]) == 16
    assert row["models"] == [{"name": "llama", "state": "ready"}]


@pytest.mark.parametrize(("fields", "rows"), [({}, FOREIGN_ROWS), ({"max_rows": 4}, 4)])
async def test_a_foreign_server_serves_as_many_requests_at_once_as_an_admin_sets(
    world: World, api: httpx.AsyncClient, fields: dict[str, int], rows: int
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("?", a_model("llama"))))
    wanted = {"url": "http://127.0.0.1:1", "kind": "openai", "name": "x", **fields}
    assert (await api.post("/nodes", json=wanted)).json()["max_rows"] == fields.get("max_rows")
    (view,) = world.fleet.snapshot
    assert view.status is not None and view.status.models[0].max_rows == rows
    async with world.registry.read() as session:
        assert (await nodes.get(session, "x")).max_rows == fields.get("max_rows")


async def test_requests_go_to_those_models_of_a_server_that_an_admin_has_accepted(
    world: World, api: httpx.AsyncClient
) -> None:
    server = world.play("http://127.0.0.1:1", PlayedNode(a_status("x", a_model("a"), a_model("b"))))
    add = {"url": "http://127.0.0.1:1", "name": "lm", "kind": "openai"}
    wrong = await api.post("/nodes", json={**add, "models": ["c"]})
    assert message(wrong, 400) == "The server does not list 'c'; it lists a, b."
    row = (await api.post("/nodes", json={**add, "models": ["a"]})).json()
    assert ([model["name"] for model in row["models"]], row["unaccepted"]) == (["a"], ["b"])
    server.status = a_status("x", a_model("a"), a_model("b"), a_model("local"))
    world.accept(next(iter(world.records.values())))
    assert (await api.get("/nodes")).json()[0]["unaccepted"] == ["b", "local"]
    wrong = await api.post("/nodes/accept", json={"node": "lm", "models": ["c"]})
    assert message(wrong, 400).startswith("The server does not list 'c'")
    row = (await api.post("/nodes/accept", json={"node": "lm", "models": ["b", "a"]})).json()
    assert ([model["name"] for model in row["models"]], row["unaccepted"]) == (
        ["a", "b"],
        ["local"],
    )
    assert (await world.audited())[0] == ("boss", "node.accept", "lm", "b, a")
    async with world.registry.read() as session:
        [record] = await nodes.list_all(session)
    assert record.accepted == ("a", "b")
    assert message(await api.post("/nodes/accept", json={"node": "no", "models": ["a"]}), 404)


async def test_all_models_of_an_agent_are_served(world: World, api: httpx.AsyncClient) -> None:
    await added(world, api, "mini", a_model("a"))
    accept = await api.post("/nodes/accept", json={"node": "mini", "models": ["a"]})
    assert "is a node agent" in message(accept, 400)
    world.play("http://127.0.0.1:1", PlayedNode(a_status("x")))
    add = await api.post("/nodes", json={"url": "http://127.0.0.1:1", "models": ["a"]})
    assert message(add, 400).startswith("`models` is for a server of kind openai")


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
    ("state", "reported_s", "shown_s"),
    [("ready", None, 0.0), ("ready", 60.0, 60.0), ("failed", 60.0, None)],
)
async def test_a_model_in_memory_shows_how_long_it_is_kept_and_has_been_idle(
    world: World,
    api: httpx.AsyncClient,
    state: str,
    reported_s: float | None,
    shown_s: float | None,
) -> None:
    idle_s = 5.0 if state == "ready" else None
    model = a_model("tiny", ModelState(state))
    model = msgspec.structs.replace(model, keep_alive_s=reported_s, idle_s=idle_s)
    await added(world, api, "a", model)
    [place] = (await api.get("/models")).json()[0]["nodes"]
    assert place["keep_alive_s"] == shown_s
    assert place["idle_s"] == (pytest.approx(idle_s, abs=2) if idle_s else None)


async def test_a_node_that_never_answered_shows_what_it_last_reported(
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


async def test_a_load_that_cannot_be_is_refused_with_the_reason(
    world: World, api: httpx.AsyncClient
) -> None:
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


async def test_an_unload_goes_to_every_node_that_has_the_model_loaded(
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


async def test_a_foreign_server_accepts_no_orders(world: World, api: httpx.AsyncClient) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("?", a_model("llama"))))
    await api.post("/nodes", json={"url": "http://127.0.0.1:1", "kind": "openai", "name": "x"})
    response = await api.post("/models/load", json={"model": "llama", "node": "x"})
    assert "not a node agent" in message(response, 400)


async def test_a_node_whose_id_cannot_be_shown_is_not_added(
    world: World, api: httpx.AsyncClient
) -> None:
    world.play("http://127.0.0.1:1", PlayedNode(a_status("id\x1b[2J", a_model("tiny"))))
    response = await api.post("/nodes", json={"url": "http://127.0.0.1:1"})
    assert response.status_code >= 400
    assert response.json()["error"]["message"].endswith("has an id that cannot be shown.")
    assert world.records == {}


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\r\nb", "a\0", "\u202ea", "\u2066a", "x" * 300])
async def test_what_cannot_be_shown_names_nothing(
    world: World, api: httpx.AsyncClient, name: str
) -> None:
    await added(world, api, "mini", a_model("a"))
    requests: list[tuple[str, str, dict[str, object]]] = [
        ("POST", "/nodes", {"url": f"http://{name}"}),
        ("POST", "/nodes", {"url": "http://127.0.0.1:1", "name": name}),
        ("POST", "/nodes/accept", {"node": "mini", "models": [name]}),
        ("POST", "/keys", {"name": name}),
        ("PUT", f"/aliases/{quote(name)}", {"targets": [{"model": "a"}]}),
        ("PUT", "/aliases/b", {"targets": [{"model": name}], "force": True}),
        ("POST", "/models/pull", {"model": name}),
        ("POST", "/models/pull", {"model": "a", "repo": name}),
        ("POST", "/models/pull", {"model": "../../etc/passwd"}),
        ("POST", "/models/pull", {"model": "/etc/passwd"}),
        ("POST", "/models/pull", {"model": "a", "repo": "../../etc/passwd"}),
        ("POST", "/schedules", {"model": name, "load": "0 8 * * *"}),
        ("PATCH", "/policies", {"model": name, "pinned": True}),
    ]
    for method, path, body in requests:
        answer = await api.request(method, path, json=body)
        assert answer.status_code in (400, 404), (method, path, answer.text)
    assert len(world.records) == 1
