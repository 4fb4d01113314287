"""Nodes that fail while they answer 200, that refuse the router, or that fall silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from node.protocol.messages import FinishReason, StatusEvent
from router.fleet import watcher as watcher_module
from router.upstream import control_client
from tests.router.conftest import (
    FINISHED,
    WAIT_S,
    AddNode,
    Request,
    RunningRouter,
    Script,
    ScriptedNode,
    StartNode,
    answer_bytes,
    model_status,
    node_status,
)
from tests.router.dispatch.test_relay import (
    DONE,
    HELLO,
    STREAM,
    WHOLE,
    in_band_error,
    refuse,
    request_counts,
    stream,
    whole,
)

LOAD_FAILED = b'{"error":{"message":"No.","type":"server_error","param":null,"code":"load_failed"}}'
TOO_LONG = b'{"error":{"message":"No.","type":"invalid_request_error","param":"messages"}}'
COMMENT = b": keep-alive\n\n"


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not ready():
            await asyncio.sleep(0)


# --- an error event in a stream with status 200 ---


class Sends:
    """A stream of these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def __call__(self, request: Request) -> None:
        await request.begin_stream()
        for piece in self.pieces:
            await request.chunk(piece)
        await request.end_stream()


EVENT = b"data: " + LOAD_FAILED + b"\n\n"


@pytest.mark.parametrize(
    "pieces",
    [(COMMENT, EVENT), (COMMENT + EVENT,), (EVENT,), (COMMENT, b"event: error\n" + EVENT)],
)
async def test_an_error_before_content_is_retried_on_another_node(
    router: RunningRouter, add_node: AddNode, pieces: tuple[bytes, ...]
) -> None:
    failing = await add_node(router, "a", Sends(*pieces))
    serving = await add_node(router, "b", stream)
    caller = await router.post(STREAM)
    body = await caller.body()
    assert body.endswith(HELLO + DONE) and b"load_failed" not in body
    assert request_counts(failing, serving) == [1, 1]


async def test_an_error_before_content_on_every_node_is_one_error(
    router: RunningRouter, add_node: AddNode
) -> None:
    read = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(COMMENT)
        await read.wait()
        await request.chunk(EVENT)

    nodes = [await add_node(router, name, script) for name in "abc"]
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == COMMENT
    read.set()
    assert (await in_band_error(caller))["code"] == "load_failed"
    assert sorted(request_counts(*nodes)) == [0, 1, 1]


async def test_an_error_as_the_first_event_of_the_only_node_is_a_status(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", Sends(EVENT))
    caller = await router.post(STREAM)
    assert await caller.body() == LOAD_FAILED
    assert (caller.status, caller.headers["content-type"]) == (502, "application/json")
    assert request_counts(node) == [1]


async def test_an_error_of_the_request_itself_is_not_retried(
    router: RunningRouter, add_node: AddNode
) -> None:
    event = b"data: " + TOO_LONG + b"\n\n"
    nodes = [await add_node(router, name, Sends(COMMENT, event)) for name in "ab"]
    caller = await router.post(STREAM)
    assert await caller.body() == COMMENT + event
    assert sum(request_counts(*nodes)) == 1


async def test_a_node_that_fails_each_request_after_its_first_token_draws_few(
    router: RunningRouter, add_node: AddNode
) -> None:
    nodes: dict[str, ScriptedNode] = {}
    ids: list[str] = []

    def has_accounts(request_id: str) -> bool:
        decided = router.core.decisions.find(request_id)
        return decided is not None and decided.attempts[-1].usage is not None

    async def account(name: str, request: Request, reason: FinishReason) -> None:
        ids.append(request.header("x-request-id") or "")
        finished = msgspec.structs.replace(
            FINISHED,
            seq=len(nodes[name].requests),
            request_id=request.header("x-request-id"),
            origin=request.header("x-fleet-origin"),
            proof=request.header("x-fleet-proof"),
            reason=reason,
        )
        await nodes[name].tell(finished)

    async def failing(request: Request) -> None:
        await Sends(HELLO, EVENT)(request)
        await account("a", request, FinishReason.ERROR)

    async def serving(request: Request) -> None:
        await account("b", request, FinishReason.STOP)
        await stream(request)

    nodes["a"] = await add_node(router, "a", failing)
    nodes["b"] = await add_node(router, "b", serving)
    for _ in range(64):
        caller = await router.post(STREAM)
        await caller.body()
        caller.leave()
        await until(lambda: has_accounts(ids[-1]))
    drawn = request_counts(*nodes.values())
    assert sum(drawn) == 64 and drawn[0] <= 8


# --- a node's response to the router's own token ---


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("401 Unauthorized", "wrong_node_token"),
        ("403 Forbidden", "wrong_node_token"),
        ("421 Misdirected Request", "node_refused"),
        ("307 Temporary Redirect", "node_refused"),
        ("301 Moved Permanently", "node_refused"),
        ("426 Upgrade Required", "node_refused"),
    ],
)
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_node_s_refusal_of_the_router_is_not_the_caller_s(
    router: RunningRouter, add_node: AddNode, status: str, code: str, body: dict[str, object]
) -> None:
    refusing = await add_node(router, "mini", refuse(status))
    caller = await router.post(body)
    error = await caller.error()
    assert (caller.status, error["code"]) == (502, code)
    assert "The node mini refused" in error["message"]
    assert request_counts(refusing) == [1]
    serving = await add_node(router, "b", stream if body is STREAM else whole)
    caller = await router.post(body)
    assert await caller.head() == 200
    assert request_counts(serving) == [1]


async def test_a_refused_request_goes_to_another_node(
    router: RunningRouter, add_node: AddNode
) -> None:
    refusing = await add_node(router, "a", refuse("401 Unauthorized"))
    serving = await add_node(router, "b", whole)
    caller = await router.post(WHOLE)
    assert await caller.head() == 200
    assert request_counts(refusing, serving) == [1, 1]


# --- a node that falls silent ---


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(watcher_module, "LOST_GRACE_S", 0.05)


def stop(node: ScriptedNode) -> None:
    """Stops the node as SIGSTOP does to an agent: connections are accepted, and nothing is sent on
    them."""
    node.first_events = ()
    node.requests[0].drop()


# None of these gives up by itself: it is the router that must.


async def hang(request: Request) -> None:
    await request.gone.wait()


async def hello_and_hang(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    await request.gone.wait()


async def half_unframed(request: Request) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{")
    await request.gone.wait()


async def half_framed(request: Request) -> None:
    await request.write(answer_bytes(b"{}" * 50)[:-50])
    await request.gone.wait()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_request_on_a_node_that_stops_goes_to_another_before_content(
    router: RunningRouter, add_node: AddNode, body: dict[str, object]
) -> None:
    stopped = await add_node(router, "a", hang)
    caller = await router.post(body)
    await until(lambda: request_counts(stopped) == [1])
    serving = await add_node(router, "b", stream if body is STREAM else whole)
    stop(stopped)
    assert await caller.head() == 200
    assert caller.headers["x-fleet-node"] == "b"
    assert request_counts(stopped, serving) == [1, 1]


@pytest.mark.usefixtures("quick")
async def test_a_stream_of_a_node_that_stops_ends_in_one_error(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", hello_and_hang)
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    stop(node)
    assert (await in_band_error(caller))["code"] == "node_failed"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("script", [hang, half_framed, half_unframed])
async def test_a_whole_answer_of_a_node_that_stops_is_an_error(
    router: RunningRouter, add_node: AddNode, script: Script
) -> None:
    node = await add_node(router, "a", script)
    caller = await router.post(WHOLE)
    await until(lambda: request_counts(node) == [1])
    stop(node)
    assert (await caller.error())["code"] == "node_failed"
    assert caller.status == 502


@pytest.mark.usefixtures("quick")
async def test_an_event_stream_that_goes_silent_loses_the_node_s_requests_too(
    router: RunningRouter, add_node: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "HEARTBEAT_S", 0.3)
    node = await add_node(router, "a", hello_and_hang)
    node.first_events = ()
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    assert (await in_band_error(caller))["code"] == "node_failed"


@pytest.mark.parametrize("instance_id", ["i1", "i2"])
async def test_a_node_that_returns_in_time_keeps_its_requests_unless_it_was_restarted(
    router: RunningRouter,
    add_node: AddNode,
    monkeypatch: pytest.MonkeyPatch,
    instance_id: str,
) -> None:
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.01)
    go_on = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO)
        waits = [asyncio.create_task(each.wait()) for each in (go_on, request.gone)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not request.gone.is_set():
            await request.chunk(DONE)
            await request.end_stream()

    node = await add_node(router, "a", script)
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    status = node_status(model_status("m"), node_id="id-a", instance_id=instance_id)
    node.first_events = (StatusEvent(status),)
    node.requests[0].drop()
    await until(lambda: not router.core.fleet.snapshot[0].reachable)
    watched = router.core.watcher._nodes["id-a"]
    assert watched.breaking is not None
    await until(lambda: router.core.fleet.snapshot[0].reachable)
    assert watched.breaking is None
    if instance_id == "i1":
        go_on.set()
        assert await caller.body() == DONE
    else:
        assert (await in_band_error(caller))["code"] == "node_failed"


@pytest.mark.usefixtures("quick")
async def test_a_foreign_server_that_lists_no_models_goes_on_serving(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "FOREIGN_POLL_S", 0.01)
    models = ["200 OK"]
    go_on = asyncio.Event()

    async def script(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(b'{"data":[{"id":"m"}]}', models[0])
            return
        await request.begin_stream()
        await request.chunk(HELLO)
        await go_on.wait()
        await request.chunk(DONE)
        await request.end_stream()

    await router.add(await start_node(script), kind="openai")
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    models[0] = "500 Oops"
    await until(lambda: not router.core.fleet.snapshot[0].reachable)
    assert router.core.watcher._nodes["id-a"].breaking is None
    go_on.set()
    assert await caller.body() == DONE


# --- every error has the request's id ---


async def broken(_request: Request) -> None:
    _request.drop()


async def test_errors_of_a_request_carry_its_id(router: RunningRouter, add_node: AddNode) -> None:
    await add_node(router, "a", broken)
    caller = await router.post(WHOLE)
    assert await caller.head() == 502
    mark = router.caller().owner
    assert caller.headers["x-request-id"].startswith(f"req_id-a-{mark}-")
    router.core.fleet.lost("id-a", "It sleeps.")
    caller = await router.post(WHOLE)
    assert await caller.head() == 503
    assert caller.headers["x-request-id"].startswith(f"{mark}-")


async def test_a_fault_of_the_router_carries_the_request_s_id(
    router: RunningRouter,
    add_node: AddNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await add_node(router, "a", whole)
    monkeypatch.setattr(router.core.dispatcher, "place", None)
    caller = await router.post(WHOLE)
    error = json.loads(await caller.body())["error"]
    assert (caller.status, error["code"]) == (500, "internal_error")
    assert f"in request {caller.headers['x-request-id']}" in caplog.text


async def test_a_second_attempt_at_a_node_is_a_request_of_its_own_there(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def first_broken(request: Request) -> None:
        script = whole if (request.header("x-request-id") or "").endswith(".2") else broken
        await script(request)

    node = await add_node(router, "a", first_broken)
    caller = await router.post(WHOLE)
    assert await caller.head() == 200
    *firsts, second = filter(None, (each.header("x-request-id") for each in node.requests))
    assert {f"{first}.2" for first in firsts} == {second}
    shown = caller.headers["x-request-id"]
    assert shown == f"req_id-a-{second}"
