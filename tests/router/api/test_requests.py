"""Tests the list of a caller's active requests, and their cancellation: `/v1/requests`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from node.protocol.ids import client_id, parse_id
from node.protocol.messages import ModelState, StatusEvent
from tests.router.api.test_v1 import refused
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    StartNode,
    agent_id,
    alias,
    model_status,
    node_status,
    running_router,
    silent,
)
from tests.router.dispatch.test_relay import HELLO, STREAM, WHOLE, drop, in_band_error
from tests.router.leases import open_leases
from tests.serving.caffeinate import TERMINATED, install
from tests.serving.caffeinate import begun as caffeinate_begun

REQUESTS = "/v1/requests"
COUNTED = b'event: response.output_text.delta\ndata: {"type":"x","sequence_number":41}\n\n'


class Stalled:
    """A node's script that begins as given, and then sends nothing until its caller is gone."""

    def __init__(self, first: bytes = b"", delete_status: str = "200 OK") -> None:
        self._first = first
        self._delete_status = delete_status
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, request: Request) -> None:
        if request.method == "DELETE":
            await request.answer(b'{"cancelled":true}', self._delete_status)
            return
        if self._first:
            await request.begin_stream()
            await request.chunk(self._first)
        self.begun.set()
        await request.wait_gone()
        self.gone.set()


async def listed(router: RunningRouter, key: str = "") -> list[dict[str, Any]]:
    caller = await router.send("GET", REQUESTS, x_api_key=key or router.key)
    answer = json.loads(await caller.body())
    assert caller.status == 200 and answer["object"] == "list"
    return list(answer["data"])


async def cancel(router: RunningRouter, request_id: str, key: str = "") -> RawCaller:
    return await router.send("DELETE", f"{REQUESTS}/{request_id}", x_api_key=key or router.key)


async def cancelled(caller: RawCaller) -> None:
    answer = json.loads(await caller.body())
    assert caller.status == 200
    assert (answer["object"], answer["cancelled"]) == ("request", True)


async def begun(
    router: RunningRouter, script: Stalled, body: object, path: str = CHAT
) -> RawCaller:
    caller = await router.post(body, path)
    await asyncio.wait_for(script.begun.wait(), WAIT_S)
    return caller


# --- what it does to the machine ---


async def test_a_request_keeps_the_machine_awake(
    tmp_path: Path, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    caffeinate = install(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr("serving.awake.RELEASE_S", 0.0)
    async with running_router(tmp_path) as router:
        await router.add(await start_node(script := Stalled(HELLO)))
        caller = await begun(router, script, STREAM)
        await caffeinate.until(caffeinate_begun())
        caller.leave()
        await caffeinate.until(caffeinate_begun(), TERMINATED)


# --- the list ---


async def test_a_running_request_is_listed_until_it_ends(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled(HELLO)
    await add_agent(router, "a", script)
    router.core.names.put(alias("fast", "m"))
    caller = await begun(router, script, {"model": "fast", "stream": True})
    await caller.head()
    (shown,) = await listed(router)
    assert abs(shown.pop("arrived_unix_s") - time.time()) < WAIT_S
    assert shown == {
        "id": caller.headers["x-request-id"],
        "object": "request",
        "model": "m",
        "node": "a",
        "path": CHAT,
        "state": "running",
        "stream": True,
        "key": "first",
        "priority": "default",
    }
    found = parse_id(shown["id"])
    assert found is not None
    assert (found.node_id, found.owner) == (agent_id("a"), router.caller().owner)
    caller.leave()
    async with asyncio.timeout(WAIT_S):
        while await listed(router):
            await asyncio.sleep(0)


async def test_a_stream_is_queued_until_its_answer_begins(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled(b": keep-alive\n\n")
    await add_agent(router, "a", script)
    await begun(router, script, STREAM)
    (shown,) = await listed(router)
    assert shown["state"] == "queued"


@pytest.mark.parametrize(
    ("state", "shown_as"), [(ModelState.LOADING, "queued"), (ModelState.READY, "running")]
)
async def test_a_whole_answer_is_queued_until_its_model_is_there(
    router: RunningRouter, start_node: StartNode, state: ModelState, shown_as: str
) -> None:
    script = Stalled()
    status = node_status(model_status(state=state), node_id=agent_id("a"))
    node = await start_node(script, first_events=(StatusEvent(status),))
    await router.add(node, node_id=agent_id("a"))
    await begun(router, script, WHOLE)
    (shown,) = await listed(router)
    assert (shown["state"], shown["stream"]) == (shown_as, False)


async def test_each_caller_sees_its_own_and_an_admin_sees_all(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled()
    await add_agent(router, "a", script)
    await begun(router, script, WHOLE)
    other, admin = router.new_key("inference"), router.new_key("admin")
    script.begun.clear()
    caller = await router.post(WHOLE, authorization=f"Bearer {other}")
    await asyncio.wait_for(script.begun.wait(), WAIT_S)
    (mine,), (theirs,) = await listed(router), await listed(router, other)
    assert mine["id"] != theirs["id"]
    assert [each["id"] for each in await listed(router, admin)] == [mine["id"], theirs["id"]]
    await refused(await cancel(router, theirs["id"]), 404, "request_not_found")
    assert len(await listed(router, other)) == 1
    await cancelled(await cancel(router, theirs["id"], admin))
    await refused(caller, 409, "request_cancelled")
    assert len(await listed(router)) == 1


async def test_a_key_with_neither_scope_is_403(router: RunningRouter) -> None:
    caller = await router.send("GET", REQUESTS, x_api_key=router.new_key("models"))
    await refused(caller, 403, "permission_denied")


# --- an end ---


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_cancelled_request_is_409_and_its_node_s_work_ends(
    router: RunningRouter, add_agent: AddNode, body: dict[str, object]
) -> None:
    script = Stalled()
    await add_agent(router, "a", script)
    caller = await begun(router, script, body)
    (shown,) = await listed(router)
    await cancelled(await cancel(router, shown["id"]))
    error = await refused(caller, 409, "request_cancelled")
    assert error["type"] == "invalid_request_error"
    assert caller.headers["x-should-retry"] == "false"
    assert caller.headers["x-request-id"] == shown["id"]
    await asyncio.wait_for(script.gone.wait(), WAIT_S)
    await router.idle()
    assert open_leases(router.core.traffic) == 0
    assert await listed(router) == []
    text = router.core.metrics.text().decode()
    assert 'aborted_requests_total{by="cancel",model="m",phase="prefill"} 1.0' in text
    assert 'refused_requests_total{reason="request_cancelled"} 1.0' in text


async def test_a_cancelled_stream_ends_in_one_error(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled(HELLO)
    await add_agent(router, "a", script)
    caller = await begun(router, script, STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    await cancelled(await cancel(router, caller.headers["x-request-id"]))
    assert (await in_band_error(caller))["code"] == "request_cancelled"
    await asyncio.wait_for(script.gone.wait(), WAIT_S)


async def test_a_cancelled_message_ends_in_anthropic_s_error(
    router: RunningRouter, add_agent: AddNode
) -> None:
    scripts = [Stalled(), Stalled(b"event: message_start\ndata: {}\n\n")]
    for name, script in zip("ab", scripts, strict=True):
        await add_agent(router, name, script)
        caller = await begun(router, script, STREAM, "/v1/messages")
        request_id = (await listed(router))[0]["id"]
        await cancelled(await cancel(router, request_id))
        body = await caller.body()
        if script is scripts[1]:
            assert caller.status == 200
            start, _, body = body.partition(b"event: error\ndata: ")
            assert start == b"event: message_start\ndata: {}\n\n"
        else:
            assert caller.status == 409
            router.core.fleet.lost(agent_id("a"), "It sleeps.")
        answer = json.loads(body)
        assert (answer["type"], answer["error"]["type"]) == ("error", "api_error")
        assert answer["request_id"] == request_id
        await router.idle()


async def test_a_response_is_ended_by_its_node_whose_answer_passes(
    router: RunningRouter, add_agent: AddNode
) -> None:
    cancelled_there, ending = (
        asyncio.Event(),
        b'event: response.incomplete\ndata: {"sequence_number":42}\n\n',
    )

    async def script(request: Request) -> None:
        if request.method == "DELETE":
            cancelled_there.set()
            await request.answer(b'{"cancelled":true}')
            return
        await request.begin_stream()
        await request.chunk(COUNTED)
        await cancelled_there.wait()
        await request.chunk(ending)
        await request.end_stream()

    node = await add_agent(router, "a", script)
    caller = await router.post(STREAM, "/v1/responses")
    await caller.head()
    assert await caller.chunk() == COUNTED
    shown = caller.headers["x-request-id"].replace("req_", "resp_")
    # Whoever cancels: a node knows the response's owner only.
    await cancelled(await cancel(router, shown, router.new_key("admin")))
    assert await caller.body() == ending
    (request,) = [each for each in node.requests if each.method == "DELETE"]
    found = parse_id(shown)
    assert found is not None and request.target == f"{REQUESTS}/{found.request_id}"
    origin = f"{router.core.router_id}/{router.caller().key_id}"
    assert request.header("x-fleet-origin") == origin


async def test_a_response_that_its_node_does_not_know_is_cut_and_its_error_counted_on(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled(COUNTED, "404 Not Found")
    await add_agent(router, "a", script)
    caller = await begun(router, script, STREAM, "/v1/responses")
    await caller.head()
    assert await caller.chunk() == COUNTED
    await cancelled(await cancel(router, caller.headers["x-request-id"]))
    name, _, event = (await caller.body()).partition(b"\ndata: ")
    assert name == b"event: error"
    error = json.loads(event)
    assert (error["type"], error["code"]) == ("error", "request_cancelled")
    assert error["sequence_number"] == 42


async def test_a_response_whose_node_does_not_answer_is_cut(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled()
    await add_agent(router, "a", script)
    caller = await begun(router, script, WHOLE, "/v1/responses")
    (shown,) = await listed(router)
    router.core.fleet.lost(agent_id("a"), "It sleeps.")
    await cancelled(await cancel(router, shown["id"]))
    await refused(caller, 409, "request_cancelled")
    await asyncio.wait_for(script.gone.wait(), WAIT_S)


@pytest.mark.parametrize("prefix", ["req_", "chatcmpl-", "resp_", "msg_", ""])
async def test_any_id_of_an_answer_names_its_request(
    impatient: RunningRouter, add_agent: AddNode, prefix: str
) -> None:
    script = Stalled()
    await add_agent(impatient, "a", script)
    caller = await begun(impatient, script, STREAM)
    await caller.head()
    ticket_id = caller.headers["x-request-id"]
    assert ticket_id.startswith(impatient.caller().owner + "-")
    shown = client_id(prefix, agent_id("a"), ticket_id) if prefix else ticket_id
    await cancelled(await cancel(impatient, shown))
    rest = (await caller.body()).replace(b": keep-alive\n\n", b"")
    assert b"request_cancelled" in rest and rest.count(b"data:") == 1


async def test_a_request_may_be_cancelled_again_and_again(
    router: RunningRouter, add_agent: AddNode
) -> None:
    script = Stalled()
    await add_agent(router, "a", script)
    caller = await begun(router, script, WHOLE)
    (shown,) = await listed(router)
    answers = [await cancel(router, shown["id"]) for _ in range(5)]
    await refused(caller, 409, "request_cancelled")
    for each in answers:
        assert await each.head() == 200


async def test_a_cancelled_request_of_a_foreign_server_is_accounted_for(
    router: RunningRouter, start_node: StartNode
) -> None:
    script = Stalled()

    async def foreign(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(b'{"data":[{"id":"m"}]}')
        else:
            await script(request)

    await router.add(await start_node(foreign), kind="openai", node_id=agent_id("a"))
    caller = await begun(router, script, WHOLE)
    (shown,) = await listed(router)
    await cancelled(await cancel(router, shown["id"]))
    await refused(caller, 409, "request_cancelled")
    await router.idle()
    assert [row.reason for row in router.core.ledger.pop_rows()] == ["cancelled"]
    await refused(await cancel(router, shown["id"]), 404, "request_not_found")


# --- requests that do not run here ---


def elsewhere(router: RunningRouter, name: str = "a", key: str = "") -> str:
    return client_id("req_", agent_id(name), f"{router.caller(key).owner}-0a1b2c3d-000001")


async def test_a_request_that_runs_elsewhere_is_cancelled_at_its_node(
    router: RunningRouter, add_agent: AddNode
) -> None:
    node = await add_agent(router, "a", Stalled())
    request_id = elsewhere(router)
    caller = await cancel(router, request_id)
    assert await caller.body() == b'{"cancelled":true}'
    request = node.requests[-1]
    assert (request.method, request.target) == ("DELETE", f"{REQUESTS}/{request_id}")
    origin = f"{router.core.router_id}/{router.caller().key_id}"
    assert request.header("x-fleet-origin") == origin


async def test_another_key_s_request_is_as_unknown_as_none(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    key = router.new_key("inference", "admin")
    for wrong in (elsewhere(router, key=key), "x", "req_1", "a/b", "%0a"):
        error = await refused(await cancel(router, wrong), 404, "request_not_found")
        assert error["message"] == "No request with this id is open."


async def test_a_cancellation_at_a_node_that_is_gone_or_away_is_refused_as_such(
    router: RunningRouter, add_agent: AddNode
) -> None:
    error = await refused(await cancel(router, elsewhere(router)), 404, "request_not_found")
    assert "not part of the fleet any more" in error["message"]
    await add_agent(router, "a", drop)
    await refused(await cancel(router, elsewhere(router)), 503, "owner_unreachable")
    router.core.fleet.lost(agent_id("a"), "It sleeps.")
    caller = await cancel(router, elsewhere(router))
    await refused(caller, 503, "owner_unreachable")
    assert int(caller.headers["retry-after"]) > 0


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_the_router_s_end_is_no_cancellation(
    router: RunningRouter, add_agent: AddNode, method: str
) -> None:
    begun = asyncio.Event()

    async def script(request: Request) -> None:
        begun.set()
        await request.gone.wait()

    await add_agent(router, "a", script)
    if method == "POST":
        caller = await router.post(WHOLE)
    else:
        caller = await cancel(router, elsewhere(router))
    await asyncio.wait_for(begun.wait(), WAIT_S)
    for task in list(router.state.tasks):
        task.cancel()
    await refused(caller, 503, "shutting_down")
