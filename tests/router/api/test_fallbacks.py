"""Names that mean several models, over real sockets: where a request goes, and where it goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from node.protocol.ids import client_id
from node.protocol.messages import ModelState, StatusEvent
from node.protocol.overflow import Overflow
from registry.records import AliasTarget
from router.api.body_room import BodyRoom
from router.api.tickets import Tickets
from router.routing.request_hints import MAX_ID_CHARS
from tests.router.api.test_responses import response_id
from tests.router.api.test_v1 import inferences, refused
from tests.router.conftest import (
    CHAT,
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
)
from tests.router.leases import open_leases

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


def model_of(request: Request) -> str:
    return str(json.loads(request.body)["model"])


async def dying(request: Request) -> None:
    """A node that dies of `a`, and answers for all else."""
    if model_of(request) == "a":
        request.drop()
    else:
        await answering(request)


async def answering(request: Request) -> None:
    body = json.loads(request.body)
    if body.get("fails"):
        await request.answer(b"{}", "400 Bad Request")
    elif body.get("stream"):
        await request.begin_stream()
        await request.chunk(EVENT)
        await request.end_stream()
    else:
        await request.answer(b'{"answered":true}')


async def a_fleet(
    router: RunningRouter, start_node: StartNode, script: Any = dying, **of_a: Any
) -> ScriptedNode:
    """One node with the models `a` and `b`; `auto` means one of them."""
    status = node_status(model_status("a", **of_a), model_status("b"), node_id=agent_id("n"))
    node = await start_node(script, first_events=(StatusEvent(status),))
    await router.add(node, "n", node_id=agent_id("n"))
    router.core.names.put(alias("auto", "a", "b"))
    return node


def load_all(router: RunningRouter, node: ScriptedNode) -> None:
    status = node_status(model_status("a"), model_status("b"), node_id=agent_id("n"))
    node.first_events = (StatusEvent(status),)
    router.core.fleet.on_status(agent_id("n"), status)


async def explained(router: RunningRouter, caller: RawCaller) -> dict[str, Any]:
    key = router.core.settings.current.admin_key_file.read_text().strip()
    path = f"/admin/explain/{caller.headers['x-request-id']}"
    asker = await router.send("GET", path, authorization=f"Bearer {key}")
    answer = json.loads(await asker.body())
    assert asker.status == 200
    return dict(answer)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_target_whose_nodes_all_fail_falls_back_to_the_next(
    router: RunningRouter, start_node: StartNode, stream: bool
) -> None:
    node = await a_fleet(router, start_node)
    caller = await router.post({"model": "auto", "stream": stream})
    body = await caller.body()
    assert caller.status == 200 and body == (EVENT if stream else b'{"answered":true}')
    assert caller.headers["x-fleet-model"] == "b"
    assert [model_of(each) for each in inferences(node)] == ["a", "a", "b"]
    first, second, third = [each.header("x-request-id") or "" for each in inferences(node)]
    assert (second, third) == (f"{first}.2", f"{first}.3")
    assert all(each.header("x-fleet-requested-model") == "auto" for each in inferences(node))
    decision = await explained(router, caller)
    assert (decision["requested_model"], decision["model"]) == ("auto", "b")
    assert decision["failed_targets"] == ["a (node_failed)"]
    assert [each["decision"]["model"] for each in decision["attempts"]] == ["a", "a", "b"]
    assert "a is the first that can serve it" in decision["target_reason"]


async def test_the_last_target_s_failure_is_returned(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def die(request: Request) -> None:
        request.drop()

    await a_fleet(router, start_node, die)
    await refused(await router.post({"model": "auto"}), 502, "node_failed")
    assert open_leases(router.core.traffic) == 0


async def test_a_model_without_an_alias_has_no_other(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_fleet(router, start_node)
    await refused(await router.post({"model": "a"}), 502, "node_failed")


async def test_after_the_first_content_there_is_no_other_target(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def break_off(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        request.drop()

    node = await a_fleet(router, start_node, break_off)
    body = await (await router.post({"model": "auto", "stream": True})).body()
    assert body.startswith(EVENT) and b"node_failed" in body and b"[DONE]" not in body
    assert len(inferences(node)) == 1


async def test_a_stream_that_was_sent_a_comment_may_still_go_to_another_model(
    impatient: RunningRouter, start_node: StartNode
) -> None:
    async def slow(request: Request) -> None:
        if model_of(request) == "a":
            await asyncio.sleep(0)
            await may_fail.wait()
        await dying(request)

    may_fail = asyncio.Event()
    await a_fleet(impatient, start_node, slow)
    caller = await impatient.post({"model": "auto", "stream": True})
    assert await caller.head() == 200
    assert (await caller.chunk()).startswith(b":")
    may_fail.set()
    body = await caller.body()
    assert body.endswith(EVENT) and b": fleet" in body and b"b" in body


async def test_what_does_not_fit_a_target_is_not_tried_there(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_fleet(router, start_node, context_tokens=100)
    long = [{"role": "user", "content": "word " * 1000}]
    caller = await router.post({"model": "auto", "messages": long, "max_tokens": 1})
    assert await caller.head() == 200
    assert [model_of(each) for each in inferences(node)] == ["b"]
    decision = await explained(router, caller)
    assert decision["failed_targets"] == []
    assert "a: its context is too small" in decision["target_reason"]


async def test_each_target_gets_its_own_defaults(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_fleet(router, start_node)
    targets = AliasTarget("a", {"temperature": 0.1}), AliasTarget("b", {"max_tokens": 5})
    router.core.names.put(alias("auto", *targets))
    await (await router.post({"model": "auto", "seed": 1})).body()
    bodies = [json.loads(each.body) for each in inferences(node)]
    assert bodies[0] == {"model": "a", "seed": 1, "temperature": 0.1}
    assert bodies[-1] == {"model": "b", "seed": 1, "max_tokens": 5}


async def test_spillover_goes_to_the_next_while_the_first_is_busy(
    router: RunningRouter, start_node: StartNode
) -> None:
    released = asyncio.Event()

    async def hold(request: Request) -> None:
        await released.wait()
        await request.answer(b"{}")

    node = await a_fleet(router, start_node, hold)
    router.core.names.put(alias("auto", "a", "b", selector="spillover", spill_at=1))
    callers = []
    for count in range(1, 4):
        callers.append(await router.post({"model": "auto"}))
        async with asyncio.timeout(WAIT_S):
            while len(inferences(node)) < count:
                await asyncio.sleep(0.005)
    assert [model_of(each) for each in inferences(node)] == ["a", "b", "a"]
    released.set()
    for caller in callers:
        assert await caller.head() == 200


async def test_a_session_is_answered_by_one_model_whatever_becomes_ready(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_fleet(router, start_node, answering, state=ModelState.ON_DISK)
    router.core.names.put(alias("auto", "a", "b", selector="warm"))

    async def model_for(stream: bool, *texts: str, **headers: str) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
        body = {"model": "auto", "stream": stream, "messages": messages}
        caller = await router.post(body, **headers)
        await caller.body()
        return caller.headers["x-fleet-model"]

    assert await model_for(True, "hello") == "b"
    assert await model_for(False, "other", x_session_id="s") == "b"
    load_all(router, node)
    assert await model_for(False, "hallo") == "a"
    assert await model_for(False, "hello", "hi", "more") == "b"
    assert await model_for(True, "else", x_session_id="s") == "b"
    assert await model_for(False, "else", x_session_id="t") == "a"


async def test_an_error_is_no_answer_that_a_session_goes_on_from(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_fleet(router, start_node, answering, state=ModelState.ON_DISK)
    router.core.names.put(alias("auto", "a", "b", selector="warm"))
    for fails, known in ((True, 0), (False, 1)):
        caller = await router.post({"model": "auto", "fails": fails}, x_session_id="s")
        assert await caller.head() == (400 if fails else 200)
        await router.idle()
        assert len(router.core.last_targets) == known


async def test_what_is_kept_of_a_session_is_short_and_nothing_where_there_is_no_choice(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_fleet(router, start_node)
    tickets, headers = Tickets(router.core, BodyRoom()), [(b"x-session-id", b"s" * 9999)]
    for selector, targets, kept in (
        ("warm", ("a", "b"), True),
        ("warm", ("a",), False),
        ("first", ("a", "b"), False),
    ):
        router.core.names.put(alias("auto", *targets, selector=selector))
        call = await tickets.read(router.caller(), CHAT, headers, b'{"model":"auto"}', 0.0)
        assert (call.turn is not None) is kept
        assert call.turn is None or len(call.turn.session) <= MAX_ID_CHARS


async def test_what_goes_on_from_a_response_goes_to_the_model_that_made_it(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_fleet(router, start_node, state=ModelState.ON_DISK)
    router.core.names.put(alias("auto", "a", "b", selector="warm"))
    first = await router.post({"model": "auto", "input": "hello"}, "/v1/responses")
    assert await first.head() == 200 and first.headers["x-fleet-model"] == "b"
    (request,) = inferences(node)
    request_id = request.header("x-request-id")
    assert request_id is not None
    previous = client_id("resp_", agent_id("n"), request_id)
    load_all(router, node)
    body = {"model": "auto", "input": "more", "previous_response_id": previous}
    caller = await router.post(body, "/v1/responses")
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "b"


async def test_a_pattern_serves_names_that_nobody_has_set_up(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_fleet(router, start_node)
    router.core.names.put(alias("claude-*", "b"))
    caller = await router.post({"model": "claude-haiku-4-5", "max_tokens": 9})
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "b"
    assert inferences(node)[0].header("x-fleet-requested-model") == "claude-haiku-4-5"


TOO_LONG = (
    b'{"error":{"message":"Too long.","code":"context_length_exceeded","type":"x","param":"m"}}'
)
LOAD_FAILED = b'{"error":{"message":"No.","code":"load_failed","type":"server_error","param":null}}'
FULL = b'{"error":{"message":"Full.","code":"queue_full","type":"server_error","param":null}}'


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("400 Bad Request", TOO_LONG, "context_length_exceeded"),
        ("500 Internal Server Error", TOO_LONG, "context_length_exceeded"),
        ("503 Service Unavailable", LOAD_FAILED, "node_failed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_model_cannot_serve_goes_to_the_next(
    router: RunningRouter, start_node: StartNode, status: str, error: bytes, code: str, stream: bool
) -> None:
    async def refuse(request: Request) -> None:
        if model_of(request) == "a":
            await request.answer(error, status)
        else:
            await dying(request)

    node = await a_fleet(router, start_node, refuse)
    caller = await router.post({"model": "auto", "stream": stream})
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "b"
    await caller.body()
    assert [model_of(each) for each in inferences(node)] == ["a", "b"]
    assert (await explained(router, caller))["failed_targets"] == [f"a ({code})"]
    await router.idle()
    assert open_leases(router.core.traffic) == 0


async def test_a_prompt_that_fits_no_target_gets_the_error_of_the_last_one(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def refuse(request: Request) -> None:
        await request.answer(TOO_LONG, "400 Bad Request")

    node = await a_fleet(router, start_node, refuse)
    caller = await router.post({"model": "auto"})
    assert await caller.body() == TOO_LONG and caller.status == 400
    assert [model_of(each) for each in inferences(node)] == ["a", "b"]


LONG: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "word " * 20_000}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "word " * 20_000}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "word " * 20_000}]},
    "/v1/completions": {"prompt": "word " * 20_000},
    "/v1/responses": {"input": "word " * 20_000},
}


@pytest.mark.parametrize("path", LONG)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_can_fit_on_no_node_is_refused_before_any_gets_it_or_loads(
    router: RunningRouter, start_node: StartNode, path: str, stream: bool
) -> None:
    on_disk: dict[str, Any] = {"state": ModelState.ON_DISK, "context_tokens": 300}
    node = await a_fleet(router, start_node, answering, **on_disk)
    body = LONG[path] | {"model": "a", "stream": stream}
    caller = await router.post(body, path)
    if path.endswith("count_tokens"):
        assert await caller.head() == 200 and len(inferences(node)) == 1
        return
    error = json.loads(await caller.body())["error"]
    assert (caller.status, caller.headers["x-should-retry"]) == (400, "false")
    if path == "/v1/messages":
        assert error["message"] == Overflow(100_000 // 4, 300).anthropic
    else:
        assert error["code"] == "context_length_exceeded"
    assert inferences(node) == []
    caller = await router.post(LONG[path] | {"model": "auto", "stream": stream}, path)
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "b"


@pytest.mark.parametrize(("selector", "status"), [("first", 429), ("spillover", 200)])
async def test_a_full_queue_leads_to_the_next_for_spillover_only(
    router: RunningRouter, start_node: StartNode, selector: str, status: int
) -> None:
    async def full(request: Request) -> None:
        if model_of(request) == "a":
            await request.answer(FULL, "429 Too Many Requests")
        else:
            await dying(request)

    await a_fleet(router, start_node, full)
    router.core.names.put(alias("auto", "a", "b", selector=selector, spill_at=9))
    assert await (await router.post({"model": "auto"})).head() == status


async def test_a_request_of_two_targets_is_one_in_the_accounts_of_each(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_fleet(router, start_node)
    await (await router.post({"model": "auto"})).body()
    await router.idle()
    router.core.ledger.close_all()
    rows = router.core.ledger.pop_rows()
    assert [(row.model, row.request_id.partition(".")[2]) for row in rows] == [
        ("a", ""),
        ("a", "2"),
        ("b", "3"),
    ]
    assert len({row.request_id.partition(".")[0] for row in rows}) == 1


async def test_what_goes_on_from_a_response_goes_to_a_model_that_its_node_has(
    router: RunningRouter, start_node: StartNode, add_agent: AddNode
) -> None:
    await a_fleet(router, start_node)

    async def answer(request: Request) -> None:
        await request.answer(b"{}")

    holder = await add_agent(router, "h", answer)
    router.core.names.put(alias("auto", "b", "m"))
    body = {"model": "auto", "input": "more", "previous_response_id": response_id(router, "h")}
    caller = await router.post(body, "/v1/responses")
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "m"
    assert len(inferences(holder)) == 1
