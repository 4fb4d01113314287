"""Stored responses: from their nodes, for their owners only; requests that go on from one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from node.protocol.ids import client_id
from node.protocol.messages import StatusEvent
from node.protocol.paths import PATH_RESPONSES
from router.upstream import node_client
from tests.router.api.test_v1 import refused
from tests.router.conftest import (
    WAIT_S,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    agent_id,
    alias,
    model_status,
    node_status,
    silent,
)
from tests.router.dispatch.test_relay import drop, refuse, stream

RESPONSES = "/v1/responses"
FOLLOW_UPS = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
STORED = b'{"id":"resp_x","object":"response"}\n'


async def stored(request: Request) -> None:
    await request.answer(STORED, x_secret="1")


async def hang(request: Request) -> None:
    await request.gone.wait()


def response_id(router: RunningRouter, name: str = "a", key: str = "") -> str:
    """The id of a response that the node of that name gave to the owner of the key."""
    return client_id("resp_", agent_id(name), f"{router.caller(key).owner}-0a1b2c3d-000001")


async def call(
    router: RunningRouter, method: str, path: str, key: str = "", **headers: str
) -> RawCaller:
    headers = {"x_api_key": key or router.key, "content_length": "0"} | headers
    return await router.send(method, f"{RESPONSES}/{path}", b"", **headers)


def request_counts(*nodes: ScriptedNode) -> list[int]:
    """Returns the number of callers' requests that reached each node."""
    return [sum(each.target.startswith("/v1/") for each in node.requests) for node in nodes]


# --- what is passed on ---


@pytest.mark.parametrize(("method", "verb"), FOLLOW_UPS)
@pytest.mark.parametrize("query", ["", "?limit=2&after=x%20y"])
async def test_a_follow_up_goes_to_its_node_and_back_as_it_is(
    router: RunningRouter, add_agent: AddNode, method: str, verb: str, query: str
) -> None:
    node, other = await add_agent(router, "a", stored), await add_agent(router, "b", silent)
    path = response_id(router) + verb + query
    caller = await call(router, method, path, traceparent="x", anthropic_beta="y")
    assert await caller.body() == STORED
    assert (caller.status, caller.headers["x-fleet-node"]) == (200, "a")
    assert caller.headers["content-type"] == "application/json"
    assert "x-secret" not in caller.headers
    (request,) = [each for each in node.requests if each.target.startswith("/v1/")]
    assert (request.method, request.target) == (method, f"{RESPONSES}/{path}")
    assert request.header("authorization") == "Bearer secret"
    origin = f"{router.core.router_id}/{router.caller().key_id}"
    assert request.header("x-fleet-origin") == origin
    assert router.key not in str(request.headers)
    assert request_counts(other) == [0]
    router.core.ledger.close_all()
    assert router.core.ledger.waiting_rows == 0


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "503 Away", "500 Oops"])
async def test_a_node_s_refusal_of_a_follow_up_passes(
    router: RunningRouter, add_agent: AddNode, status: str
) -> None:
    body = b'{"error": {"message":"No."} }'

    async def script(request: Request) -> None:
        await request.answer(body, status, retry_after="7")

    node = await add_agent(router, "a", script)
    caller = await call(router, "GET", response_id(router))
    assert await caller.body() == body
    assert (caller.status, caller.headers["retry-after"]) == (int(status.split()[0]), "7")
    assert request_counts(node) == [1]


async def test_a_node_s_refusal_of_the_router_is_not_the_caller_s(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", refuse("401 Unauthorized"))
    caller = await call(router, "GET", response_id(router))
    assert "The node a refused" in (await refused(caller, 502, "wrong_node_token"))["message"]


# --- its owner ---


@pytest.mark.parametrize(("method", "verb"), FOLLOW_UPS)
async def test_another_key_s_response_is_as_unknown_as_no_response(
    router: RunningRouter, add_agent: AddNode, method: str, verb: str
) -> None:
    await add_agent(router, "a", silent)
    owner = router.caller().owner
    theirs = response_id(router, key=router.new_key("inference"))
    wrong = [
        theirs,
        response_id(router).replace("resp_", "msg_"),
        client_id("resp_", agent_id("a"), "0a1b2c3d"),
        f"resp_{owner}-0a1b2c3d-000001",
        "resp_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b",
        response_id(router) + "%0a",
        response_id(router) + "%20x",
        "x",
    ]
    messages = set()
    for each in wrong:
        caller = await call(router, method, each + verb)
        messages.add((await refused(caller, 404, "response_not_found"))["message"])
    assert messages == {"There is no response with this id."}


async def test_not_even_an_admin_sees_another_s_response(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    key = router.new_key("inference", "admin")
    caller = await call(router, "GET", response_id(router), key)
    await refused(caller, 404, "response_not_found")


# --- where the node is ---


async def test_a_response_of_a_node_that_was_removed_is_404_with_the_reason(
    router: RunningRouter, add_agent: AddNode, start_node: StartNode
) -> None:
    async def foreign(request: Request) -> None:
        await request.answer(b'{"data":[{"id":"m"}]}')

    await router.add(await start_node(foreign), "f", "openai", node_id=agent_id("f"))
    await add_agent(router, "a", silent)
    await router.core.watcher.unwatch(agent_id("a"))
    for name in "af":
        caller = await call(router, "GET", response_id(router, name))
        error = await refused(caller, 404, "response_not_found")
        assert "not part of the fleet any more" in error["message"]


async def test_a_response_of_a_node_that_is_away_is_503_with_retry_after(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    router.core.fleet.lost(agent_id("a"), "It sleeps.")
    caller = await call(router, "GET", response_id(router))
    error = await refused(caller, 503, "owner_unreachable")
    assert "The node a" in error["message"] and int(caller.headers["retry-after"]) > 0


async def test_a_node_that_dies_at_a_follow_up_is_away(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", drop)
    caller = await call(router, "DELETE", response_id(router))
    await refused(caller, 503, "owner_unreachable")
    assert "retry-after" in caller.headers


async def test_a_node_that_does_not_answer_a_follow_up_is_away(
    router: RunningRouter, add_agent: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "CONTROL_TIMEOUT_S", 0.05)
    node = await add_agent(router, "a", hang)
    async with asyncio.timeout(WAIT_S):
        # On a busy machine the time may be up before the request is sent.
        while PATH_RESPONSES not in node.requests[-1].target:
            caller = await call(router, "GET", response_id(router))
            await refused(caller, 503, "owner_unreachable")
        await node.requests[-1].gone.wait()


async def test_an_answer_without_end_is_not_gathered(
    router: RunningRouter, add_agent: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "MAX_RESPONSE_BYTES", 1000)

    async def flood(request: Request) -> None:
        await request.begin_stream()
        while not request.gone.is_set():
            await request.chunk(b"x" * 500)
            await asyncio.sleep(0)

    await add_agent(router, "a", flood)
    caller = await call(router, "GET", response_id(router))
    await refused(caller, 503, "owner_unreachable")


async def test_a_follow_up_at_the_router_s_end_is_rejected_for_it(
    router: RunningRouter, add_agent: AddNode
) -> None:
    begun = asyncio.Event()

    async def script(request: Request) -> None:
        begun.set()
        await request.gone.wait()

    await add_agent(router, "a", script)
    caller = await call(router, "GET", response_id(router))
    await asyncio.wait_for(begun.wait(), WAIT_S)
    for task in list(router.state.tasks):
        task.cancel()
    await refused(caller, 503, "shutting_down")


# --- going on from a response ---


def going_on(previous_id: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "x", "previous_response_id": previous_id} | fields


async def test_a_request_goes_on_where_its_response_is(
    router: RunningRouter, add_agent: AddNode
) -> None:
    nodes = {name: await add_agent(router, name, stored) for name in "abc"}
    for _ in range(3):
        body = json.dumps(going_on(response_id(router, "b"))).encode()
        caller = await router.post(body, RESPONSES)
        assert await caller.body() == STORED
        assert caller.headers["x-fleet-node"] == "b"
    assert request_counts(*nodes.values()) == [0, 3, 0]
    assert nodes["b"].requests[-1].body == body


@pytest.mark.parametrize("kind", ["rs_", "fc_", "msg_"])
async def test_a_request_that_refers_to_an_item_goes_where_its_response_is(
    router: RunningRouter, add_agent: AddNode, kind: str
) -> None:
    nodes = {name: await add_agent(router, name, stored) for name in "ab"}
    item = response_id(router, "b").replace("resp_", kind) + "-0"
    body = {"model": "m", "input": [{"type": "item_reference", "id": item}, {"role": "user"}]}
    for _ in range(2):
        await (await router.post(body, RESPONSES)).body()
    assert request_counts(*nodes.values()) == [0, 2]


def item_id(router: RunningRouter, name: str, key: str = "") -> str:
    """The id of an item of a response that the node of that name gave."""
    return response_id(router, name, key).replace("resp_", "rs_") + "-0"


@pytest.mark.parametrize(
    "reference",
    [
        {},
        {"type": None},
        {"type": ""},
        {"type": "item_reference", "role": "user"},
        {"status": {"type": "x", "role": "y"}},
    ],
)
async def test_a_reference_may_have_no_type(
    router: RunningRouter, add_agent: AddNode, reference: dict[str, Any]
) -> None:
    nodes = {name: await add_agent(router, name, stored) for name in "ab"}
    message = {"type": "message", "role": "user", "id": item_id(router, "a"), "content": "x"}
    body = {"model": "m", "input": [message, {"id": item_id(router, "b"), **reference}]}
    for _ in range(2):
        await (await router.post(body, RESPONSES)).body()
    assert request_counts(*nodes.values()) == [0, 2]


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "reasoning", "id": "ITEM"}],
        [{"role": "user", "id": "ITEM"}],
        [{"type": "item_reference", "id": 7}],
        [{"type": "item_reference", "id": "msg_68af4030592c81938ec0a5fbab4a3e9f"}],
        [{"type": "item_reference"}],
        [{"type": "message", "content": [{"type": "item_reference", "id": "ITEM"}]}],
        'an item_reference with its "id"',
        ["id", {"id": "ITEM"}],
        {"id": "ITEM"},
    ],
)
async def test_what_refers_to_no_item_of_the_fleet_goes_anywhere(
    router: RunningRouter, add_agent: AddNode, items: Any
) -> None:
    nodes = [await add_agent(router, name, stored) for name in "ab"]
    text = json.dumps({"model": "m", "input": items}).replace("ITEM", item_id(router, "b"))
    for _ in nodes:
        await (await router.post(text.encode(), RESPONSES)).body()
    assert request_counts(*nodes) == [1, 1]


async def test_references_in_a_long_input_are_found(
    router: RunningRouter, add_agent: AddNode
) -> None:
    nodes = {name: await add_agent(router, name, stored) for name in "ab"}
    message = {"role": "user", "content": "x" * (2 << 20)}
    body = {
        "model": "m",
        "input": [message, {"type": "item_reference", "id": item_id(router, "b")}],
    }
    for _ in range(2):
        await (await router.post(body, RESPONSES)).body()
    assert request_counts(*nodes.values()) == [0, 2]


async def test_references_to_items_of_two_nodes_are_refused_with_the_reason(
    router: RunningRouter, add_agent: AddNode
) -> None:
    for name in "ab":
        await add_agent(router, name, silent)
    refs = [{"type": "item_reference", "id": item_id(router, name)} for name in "aab"]
    caller = await router.post({"model": "m", "input": refs}, RESPONSES)
    error = await refused(caller, 404, "item_not_found")
    assert error["param"] == "input[2].id"
    assert "is on the node b, that in input[0].id on a" in error["message"]


async def test_beside_a_previous_response_only_that_determines_the_node(
    router: RunningRouter, add_agent: AddNode
) -> None:
    nodes = {name: await add_agent(router, name, stored) for name in "ab"}
    ref = {"type": "item_reference", "id": item_id(router, "a")}
    caller = await router.post(going_on(response_id(router, "b"), input=[ref]), RESPONSES)
    await caller.body()
    assert request_counts(*nodes.values()) == [0, 1]


@pytest.mark.parametrize("whose", ["theirs", "gone", "away"])
async def test_an_item_that_cannot_be_had_is_refused_by_its_own_name(
    router: RunningRouter, add_agent: AddNode, whose: str
) -> None:
    await add_agent(router, "a", silent)
    await add_agent(router, "c", silent)
    router.core.fleet.lost(agent_id("c"), "It sleeps.")
    wanted = {
        "theirs": item_id(router, "a", router.new_key("inference")),
        "gone": item_id(router, "z"),
        "away": item_id(router, "c"),
    }[whose]
    body = {"model": "m", "input": [{"role": "user", "content": "x"}, {"id": wanted}]}
    caller = await router.post(body, RESPONSES)
    if whose == "away":
        assert "send the item whole" in (await refused(caller, 503, "owner_unreachable"))["message"]
        return
    error = await refused(caller, 404, "item_not_found")
    assert error["param"] == "input[1].id"
    assert "send the item whole" in error["message"]


async def test_a_query_that_is_too_long_is_400_and_not_dropped(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    query = "after=" + "x" * 2000
    caller = await call(router, "GET", f"{response_id(router)}/input_items?{query}")
    assert "query" in (await refused(caller, 400, "invalid_value"))["message"]


@pytest.mark.parametrize("verb", ["", "/input_items"])
async def test_head_is_sent_to_the_node_as_get(
    router: RunningRouter, add_agent: AddNode, verb: str
) -> None:
    node = await add_agent(router, "a", stored)
    caller = await call(router, "HEAD", response_id(router) + verb)
    assert await caller.head() == 200
    caller.writer.write_eof()
    assert await asyncio.wait_for(caller.reader.read(), WAIT_S) == b""
    assert node.requests[-1].method == "GET"


@pytest.mark.parametrize("previous_id", [None, "absent"])
async def test_a_request_that_goes_on_from_nothing_goes_anywhere(
    router: RunningRouter, add_agent: AddNode, previous_id: str | None
) -> None:
    nodes = [await add_agent(router, name, stored) for name in "ab"]
    body = going_on(previous_id)
    if previous_id:
        del body["previous_response_id"]
    for _ in nodes:
        await (await router.post(body, RESPONSES)).body()
    assert request_counts(*nodes) == [1, 1]


async def test_elsewhere_the_field_means_nothing(router: RunningRouter, add_agent: AddNode) -> None:
    await add_agent(router, "a", stored)
    caller = await router.post(going_on(["nonsense"]))
    assert await caller.head() == 200


@pytest.mark.parametrize("which", ["theirs", "mine", "resp_123"])
async def test_going_on_from_a_response_that_is_not_the_caller_s_is_404(
    router: RunningRouter, add_agent: AddNode, which: str
) -> None:
    await add_agent(router, "a", silent)
    theirs = response_id(router, key=router.new_key("inference"))
    mine = response_id(router).replace("resp_", "chatcmpl-")
    caller = await router.post(
        going_on({"theirs": theirs, "mine": mine}.get(which, which)), RESPONSES
    )
    error = await refused(caller, 404, "previous_response_not_found")
    assert error["param"] == "previous_response_id"
    assert "send the whole input" in error["message"] and "node" not in error["message"]


async def test_a_previous_id_that_is_no_text_is_400(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    caller = await router.post(going_on(7), RESPONSES)
    assert (await refused(caller, 400, "invalid_value"))["param"] == "previous_response_id"


async def test_where_the_node_is_gone_the_error_demands_the_whole_input(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    caller = await router.post(going_on(response_id(router, "z")), RESPONSES)
    error = await refused(caller, 404, "previous_response_not_found")
    assert "not part of the fleet any more; send the whole input" in error["message"]


async def test_where_the_node_is_away_the_caller_may_wait_or_send_the_whole_input(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", silent)
    await add_agent(router, "b", silent)
    router.core.fleet.lost(agent_id("b"), "It sleeps.")
    caller = await router.post(going_on(response_id(router, "b")), RESPONSES)
    error = await refused(caller, 503, "owner_unreachable")
    assert "or send the whole input without" in error["message"]
    assert int(caller.headers["retry-after"]) > 0


async def test_where_the_node_lost_the_model_the_error_names_both(
    router: RunningRouter, add_agent: AddNode, start_node: StartNode
) -> None:
    await add_agent(router, "a", silent)
    status = node_status(model_status("other"), node_id=agent_id("b"))
    node = await start_node(silent, first_events=(StatusEvent(status),))
    await router.add(node, "b", node_id=agent_id("b"))
    caller = await router.post(going_on(response_id(router, "b")), RESPONSES)
    error = await refused(caller, 404, "model_not_found")
    assert "The node b" in error["message"] and "'m'" in error["message"]


async def test_a_request_that_goes_on_is_not_tried_elsewhere(
    router: RunningRouter, add_agent: AddNode
) -> None:
    busy = await add_agent(router, "a", refuse("503 Away", retry_after="7"))
    dying = await add_agent(router, "b", drop)
    free = await add_agent(router, "c", silent)
    caller = await router.post(going_on(response_id(router, "a")), RESPONSES)
    assert await caller.head() == 503
    assert caller.headers["retry-after"] == "7"
    caller = await router.post(going_on(response_id(router, "b"), stream=True), RESPONSES)
    await refused(caller, 502, "node_failed")
    assert request_counts(busy, dying, free) == [1, 2, 0]


async def test_a_request_that_goes_on_is_streamed_as_any_other(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", stream)
    router.core.names.put(alias("fast", "m"))
    body = going_on(response_id(router, "a"), stream=True, model="fast")
    caller = await router.post(body, RESPONSES)
    assert (await caller.body()).endswith(b"data: [DONE]\n\n")
