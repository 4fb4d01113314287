"""`/v1/responses` of a running agent: ids, cancels, and stored responses."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.dialects.responses.response import StoredResponse
from node.engine.scripted.script import Script
from node.protocol.chain.prefix import Head
from node.protocol.ids import client_id
from node.server.response_store import ResponseFile, ResponseStore
from tests.node.serving import WAIT_S, RunningAgent, running

PATH = "/v1/responses"
SLOW = Script(tokens=1000, stall_after_tokens=2)
SHORT = Script(tokens=3)


async def ask(agent: RunningAgent, requested_id: str = "", **fields: Any) -> httpx.Response:
    headers = {"x-request-id": requested_id} if requested_id else {}
    if origin := fields.pop("origin", ""):
        headers["x-fleet-origin"] = origin
    body = {"model": "scripted", "input": "hi", **fields}
    return await agent.client.post(PATH, json=body, headers=headers)


async def answered(agent: RunningAgent, requested_id: str = "", **fields: Any) -> dict[str, Any]:
    response = await ask(agent, requested_id, **fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    shown = response.headers["x-request-id"]
    assert found["id"] == shown.replace("req_", "resp_")
    return found


# --- ids ---


async def test_a_requested_id_that_a_response_has_is_not_used_again(tmp_path: Path) -> None:
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        previous, ids = None, []
        for _ in range(4):
            response = await answered(agent, "mine", previous_response_id=previous)
            previous = response["id"]
            ids.append(previous)
        node_id = agent.app.agent.identity.node_id
        assert ids[0] == f"resp_{node_id}-mine"
        assert len(set(ids)) == 4
        assert all(each.startswith(f"{ids[0]}-") for each in ids[1:])
        for each in ids:
            assert (await agent.client.get(f"{PATH}/{each}")).json()["id"] == each


async def test_another_origins_response_is_not_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        mine = await answered(agent, "mine", origin="router/mine")
        theirs = await answered(agent, "mine", origin="router/theirs")
        assert mine["id"] != theirs["id"]
        found = await agent.client.get(
            f"{PATH}/{mine['id']}", headers={"x-fleet-origin": "router/mine"}
        )
        assert found.json() == mine


async def test_requests_at_the_same_time_get_ids_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        responses = await asyncio.gather(*(answered(agent, "mine") for _ in range(8)))
        ids = {each["id"] for each in responses}
        assert len(ids) == 8
        for each in ids:
            assert (await agent.client.get(f"{PATH}/{each}")).status_code == 200


# --- bodies ---


async def test_what_could_not_be_kept_is_refused_before_it_is_answered(tmp_path: Path) -> None:
    thought = {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": "x"}],
        "summary": ["s"],
    }
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        response = await ask(agent, input=[{"role": "user", "content": "q"}, thought])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input[1].summary[0]"


# --- ends ---


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_a_cancelled_response_that_is_not_streamed_is_returned_and_stored(
    tmp_path: Path, how: str
) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(answered(agent, "mine"))
        shown = await until_it_speaks(agent)
        path = f"{PATH}/{shown.replace('req_', 'resp_')}"
        if how == "cancel":
            cancelled = await agent.client.post(f"{path}/cancel")
            assert cancelled.json()["status"] == "cancelled"
        else:
            await agent.client.delete(f"/v1/requests/{shown}")
        response = await waiting
        assert response["status"] == "cancelled"
        (message,) = response["output"]
        assert message["status"] == "incomplete"
        assert message["content"][0]["text"]
        assert (await agent.client.get(path)).json() == response
        assert (await agent.client.post(f"{path}/cancel")).json() == response


async def until_it_speaks(agent: RunningAgent) -> str:
    """Returns the id of the only request, once its response has begun."""
    while True:
        data = (await agent.client.get("/v1/requests")).json()["data"]
        if data and data[0]["completion_tokens"]:
            return str(data[0]["id"])


async def test_a_response_that_is_deleted_on_its_way_into_the_store_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, delete = ResponseFile.put, ResponseStore.delete
    putting, deleting, go = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow_put(
        self: ResponseFile, response: StoredResponse, origin: str, head: Head | None
    ) -> None:
        loop.call_soon_threadsafe(putting.set)
        assert go.wait(WAIT_S)
        put(self, response, origin, head)

    async def noted_delete(self: ResponseStore, response_id: str, origin: str = "") -> bool:
        deleting.set()
        return await delete(self, response_id, origin)

    monkeypatch.setattr(ResponseFile, "put", slow_put)
    monkeypatch.setattr(ResponseStore, "delete", noted_delete)
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(answered(agent, "mine"))
        await putting.wait()
        path = f"{PATH}/resp_{agent.app.agent.identity.node_id}-mine"
        deleted = asyncio.create_task(agent.client.delete(path))
        await deleting.wait()
        go.set()
        assert (await deleted).json()["deleted"] is True
        await waiting
        assert (await agent.client.get(path)).status_code == 404


# --- methods ---


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/scripted", "/v1/requests", PATH])
async def test_head_is_get_without_a_body(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, SHORT) as agent, asyncio.timeout(WAIT_S):
        if path == PATH:
            path += "/" + (await answered(agent))["id"]
        response, full = await agent.client.head(path), await agent.client.get(path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == full.headers["content-length"]


AN_ID = client_id("resp_", "0" * 16, "r")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("HEAD", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/requests/", "GET, HEAD"),
        ("GET", "/v1/requests/x", "DELETE"),
        ("POST", f"/v1/responses/{AN_ID}", "GET, DELETE, HEAD"),
        ("GET", f"/v1/responses/{AN_ID}/cancel", "POST"),
        ("POST", "/v1/models/scripted", "GET, HEAD"),
    ],
)
async def test_another_method_is_405_and_names_the_allowed_ones(
    tmp_path: Path, method: str, path: str, allowed: str
) -> None:
    async with running(tmp_path, SHORT) as agent:
        response = await agent.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("GET", "/v1/responses/compact/cancel"),
        ("POST", "/v1/responses/compact/input_items"),
        ("POST", "/v1/models/load"),
        ("POST", "/v1/embeddings"),
    ],
)
async def test_a_word_is_not_read_as_the_name_of_a_thing(
    tmp_path: Path, method: str, path: str
) -> None:
    async with running(tmp_path, SHORT) as agent:
        response = await agent.client.request(method, path)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["message"]) == ("not_found", f"There is nothing at {path}.")


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/requests/"])
async def test_a_list_may_be_requested_with_a_trailing_slash(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, SHORT) as agent:
        response = await agent.client.get(path)
    assert response.json()["object"] == "list"
