"""Servers that are no node agents, on real sockets: what they are sent, and what they report."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from node.protocol.overflow import Overflow
from registry.records import UsageRecord
from router.fleet import watcher as watcher_module
from router.fleet.estimated_prefixes import EstimatedPrefixes
from router.records.outcomes import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, OUTCOME_SERVED
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    AddNode,
    Request,
    RunningRouter,
    Script,
    ScriptedNode,
    StartNode,
    alias,
)
from tests.router.dispatch.test_relay import whole
from tests.router.upstream.test_foreign import DONE, HELLO, USAGE
from tests.router.upstream.test_foreign_events import FAILED, MESSAGE_START, OVERLOADED, ROLE

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 9000}]}
WITH_COUNT = {**STREAM, "stream_options": {"include_usage": True}}
COUNT = USAGE["lm studio"]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'


def serving(answer: Script, models: bytes = b'{"data":[{"id":"m"}]}') -> Script:
    async def script(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(models)
        else:
            await answer(request)

    return script


async def counted(request: Request) -> None:
    """A stream that ends with a count where one is requested."""
    options = json.loads(request.body).get("stream_options") or {}
    await request.begin_stream()
    for piece in (HELLO, COUNT if options.get("include_usage") else b"", DONE):
        for half in (piece[:20], piece[20:]):
            if half:
                await request.chunk(half)
    await request.end_stream()


async def add(router: RunningRouter, start_node: StartNode, answer: Script) -> ScriptedNode:
    node = await start_node(serving(answer))
    await router.add(node, kind="openai")
    return node


async def row(router: RunningRouter) -> UsageRecord:
    await router.idle()
    (written,) = router.core.ledger.pop_rows()
    return written


async def ended(router: RunningRouter, outcome: str) -> None:
    """Checks how the only request was counted."""
    await router.idle()
    metrics = router.core.metrics.text().decode().splitlines()
    counted = [line for line in metrics if line.startswith("mlx_fleet_requests_total{")]
    assert counted == [f'mlx_fleet_requests_total{{model="m",node="a",outcome="{outcome}"}} 1.0']


def bodies(node: ScriptedNode) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in node.requests if each.target == CHAT]


@pytest.mark.parametrize("body", [STREAM, WITH_COUNT])
async def test_the_count_is_kept_and_passed_on_only_where_it_was_requested(
    router: RunningRouter, start_node: StartNode, body: dict[str, Any]
) -> None:
    node = await add(router, start_node, counted)
    caller = await router.post(body)
    assert await caller.body() == HELLO + (COUNT if body is WITH_COUNT else b"") + DONE
    assert bodies(node) == [WITH_COUNT]
    kept = await row(router)
    assert (kept.prompt_tokens, kept.cached_tokens, kept.completion_tokens) == (11, 5, 7)
    metrics = router.core.metrics.text().decode()
    assert 'third_party_tokens_total{kind="completion",model="m",node="a"} 7.0' in metrics
    decided = router.core.decisions.find(kept.request_id)
    assert decided is not None
    usage = decided.attempts[-1].usage
    assert usage is not None and usage.prompt_tokens == 11


async def test_a_whole_answer_s_count_is_kept(router: RunningRouter, start_node: StartNode) -> None:
    answer = b'{ "choices":[{}], "usage":{"prompt_tokens":3,"completion_tokens":2} }'

    async def script(request: Request) -> None:
        await request.answer(answer)

    node = await add(router, start_node, script)
    caller = await router.post({"model": "m"})
    assert await caller.body() == answer
    assert bodies(node) == [{"model": "m"}]
    kept = await row(router)
    assert (kept.prompt_tokens, kept.completion_tokens) == (3, 2)


@pytest.mark.parametrize("reported", [0, 3])
async def test_a_prompt_without_a_reported_length_counts_with_its_estimate(
    router: RunningRouter,
    start_node: StartNode,
    monkeypatch: pytest.MonkeyPatch,
    reported: int,
) -> None:
    served: list[int] = []
    monkeypatch.setattr(EstimatedPrefixes, "on_served", lambda *args: served.append(args[3]))

    async def script(request: Request) -> None:
        usage = {"prompt_tokens": reported, "completion_tokens": 2}
        await request.answer(json.dumps({"choices": [{}], "usage": usage}).encode())

    await add(router, start_node, script)
    await (await router.post({**STREAM, "stream": False})).body()
    await router.idle()
    decided = router.core.decisions.find((await row(router)).request_id)
    assert decided is not None
    chosen = decided.attempts[0].decision.chosen
    assert chosen is not None
    estimated = chosen.prompt_tokens
    # About four bytes of a prompt are a token.
    assert estimated == pytest.approx(9000 / 4, rel=0.05)
    assert served == [reported or estimated]


async def test_a_server_that_refuses_stream_options_is_sent_them_once(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def script(request: Request) -> None:
        if "stream_options" in json.loads(request.body):
            await request.answer(b'{"error":"unknown field stream_options"}', "400 Bad Request")
        else:
            await counted(request)

    node = await add(router, start_node, script)
    for _ in range(2):
        caller = await router.post(STREAM)
        assert await caller.body() == HELLO + DONE
    assert bodies(node) == [WITH_COUNT, STREAM, STREAM]
    caller = await router.post(WITH_COUNT)
    assert await caller.head() == 400
    assert b"stream_options" in await caller.body()


async def test_its_other_refusals_pass_as_they_are(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def script(request: Request) -> None:
        await request.answer(b'{"error":"no such thing"}', "400 Bad Request")

    node = await add(router, start_node, script)
    caller = await router.post(STREAM)
    assert (await caller.head(), await caller.body()) == (400, b'{"error":"no such thing"}')
    assert len(bodies(node)) == 1


@pytest.mark.parametrize(
    "models", [b"<html>", b'{"data":[{"id":' + b"9" * 5000 + b"}]}", b'{"data":[7,{"id":"z\\n"}]}']
)
async def test_what_it_lists_never_hurts_the_list_of_the_router(
    router: RunningRouter, start_node: StartNode, models: bytes
) -> None:
    good = await start_node(serving(counted))
    await router.add(good, "good", kind="openai")
    bad = await start_node(serving(counted, models))
    await router.add(bad, "bad", kind="openai")
    caller = await router.send("GET", "/v1/models", x_api_key=router.key)
    assert [each["id"] for each in json.loads(await caller.body())["data"]] == ["m"]
    assert await (await router.post(STREAM)).body() == HELLO + DONE


# --- the first content, and the last event ---

MESSAGES = "/v1/messages"
MESSAGE = {"model": "m", "stream": True, "max_tokens": 5, "messages": STREAM["messages"]}


def sends(*pieces: bytes, ends: bool = True) -> Script:
    """A stream of these pieces, after which the connection breaks unless it `ends`."""

    async def script(request: Request) -> None:
        await request.begin_stream()
        for piece in pieces:
            await request.chunk(piece)
        if ends:
            await request.end_stream()
        else:
            request.drop()

    return script


async def add_two(
    router: RunningRouter, start_node: StartNode, first: Script, then: Script
) -> list[Request]:
    """Servers of which the first to get a request answers so; the requests that they get."""
    received: list[Request] = []

    async def script(request: Request) -> None:
        received.append(request)
        await (first if len(received) == 1 else then)(request)

    for name in "ab":
        await router.add(await start_node(serving(script)), name, kind="openai")
    return received


@pytest.mark.parametrize(
    ("path", "body", "first"),
    [
        (CHAT, STREAM, sends(b": x\n\n" + ROLE, ROLE, ends=False)),
        (MESSAGES, MESSAGE, sends(MESSAGE_START + PING, OVERLOADED)),
        ("/v1/responses", STREAM, sends(CREATED, FAILED)),
    ],
)
async def test_a_failure_after_what_only_opens_a_stream_costs_the_caller_nothing(
    router: RunningRouter, start_node: StartNode, path: str, body: dict[str, Any], first: Script
) -> None:
    received = await add_two(router, start_node, first, sends(HELLO, DONE))
    caller = await router.post(body, path)
    assert (await caller.head(), await caller.body()) == (200, HELLO + DONE)
    assert len(received) == 2


async def test_an_error_with_only_an_opening_before_it_is_an_http_status(
    router: RunningRouter, start_node: StartNode
) -> None:
    await add(router, start_node, sends(MESSAGE_START, OVERLOADED))
    caller = await router.post(MESSAGE, MESSAGES)
    assert await caller.head() == 502
    assert json.loads(await caller.body())["error"]["message"] == "Overloaded"


async def test_an_opening_is_passed_on_with_the_content_and_silence_filled_till_then(
    impatient: RunningRouter, start_node: StartNode
) -> None:
    go_on = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(ROLE)
        await go_on.wait()
        for piece in (HELLO, DONE):
            await request.chunk(piece)
        await request.end_stream()

    await add(impatient, start_node, script)
    caller = await impatient.post(STREAM)
    assert await caller.head() == 200
    assert (await caller.chunk()).startswith(b": ")
    go_on.set()
    rest = await caller.body()
    assert rest.endswith(b": fleet node=a model=m\n\n" + ROLE + HELLO + DONE)


async def test_an_answer_without_content_is_an_answer(
    router: RunningRouter, start_node: StartNode
) -> None:
    await add(router, start_node, sends(ROLE))
    assert await (await router.post(STREAM)).body() == ROLE
    await ended(router, OUTCOME_SERVED)


@pytest.mark.parametrize("ends", [True, False])
async def test_an_error_after_content_is_a_failure_of_the_server_and_sent_once(
    router: RunningRouter, start_node: StartNode, ends: bool
) -> None:
    error = b'data: {"error":{"message":"boom","type":"server_error","code":500}}\n\n'
    await add(router, start_node, sends(HELLO, error, ends=ends))
    assert await (await router.post(STREAM)).body() == HELLO + error
    await ended(router, OUTCOME_NODE_FAILED)


@pytest.mark.parametrize("last", [DONE, OVERLOADED])
async def test_a_server_that_leaves_a_whole_answer_open_is_left(
    router: RunningRouter, start_node: StartNode, last: bytes
) -> None:
    left = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO + last)
        await request.wait_gone()
        left.set()

    await add(router, start_node, script)
    assert await (await router.post(STREAM)).body() == HELLO + last
    await asyncio.wait_for(left.wait(), WAIT_S)


async def test_what_arrives_soon_after_the_last_event_is_passed_on_and_the_connection_kept(
    router: RunningRouter, start_node: StartNode
) -> None:
    completed = b'data: {"type":"response.completed","response":{}}\n\n'
    node = await add(router, start_node, sends(HELLO, completed, DONE))
    for _ in range(2):
        caller = await router.post(STREAM, "/v1/responses")
        assert await caller.body() == HELLO + completed + DONE
        await router.idle()
    connections = {id(each.writer) for each in node.requests if each.target == "/v1/responses"}
    assert len(connections) == 1


TOO_LONG = (
    b'{"error":{"message":"request (9 tokens) exceeds the available context size (8 tokens), '
    b'try increasing it","type":"exceed_context_size_error","code":400}}'
)


async def test_anthropic_s_clients_get_their_own_error_for_a_prompt_that_is_too_long(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def script(request: Request) -> None:
        await request.answer(TOO_LONG, "400 Bad Request")

    await add(router, start_node, script)
    caller = await router.post(MESSAGE, MESSAGES)
    assert await caller.head() == 400
    error = json.loads(await caller.body())["error"]
    assert error == {"type": "invalid_request_error", "message": Overflow(9, 8).anthropic}
    caller = await router.post(STREAM)
    assert await caller.body() == TOO_LONG


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_server_that_calls_it_its_own_failure_has_not_failed(
    router: RunningRouter, start_node: StartNode, path: str
) -> None:
    async def script(request: Request) -> None:
        await request.answer(TOO_LONG, "500 Internal Server Error")

    await add(router, start_node, script)
    caller = await router.post(MESSAGE, path)
    assert await caller.head() == 400
    await ended(router, OUTCOME_REFUSED)


async def test_so_they_do_where_the_stream_has_begun(
    router: RunningRouter, start_node: StartNode
) -> None:
    await add(router, start_node, sends(MESSAGE_START, b"data: " + TOO_LONG + b"\n\n"))
    caller = await router.post(MESSAGE, MESSAGES)
    _, found, event = (await caller.body()).partition(MESSAGE_START + b"event: error\ndata: ")
    assert found and json.loads(event)["error"]["message"] == Overflow(9, 8).anthropic


async def test_a_page_that_is_no_error_is_returned_in_the_caller_s_dialect(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def script(request: Request) -> None:
        await request.answer(b"404 page not found", "404 Not Found", content_type="text/plain")

    await add(router, start_node, script)
    caller = await router.post(MESSAGE, MESSAGES)
    assert await caller.head() == 404
    assert caller.headers["content-type"] == "application/json"
    error = json.loads(await caller.body())["error"]
    assert error["type"] == "not_found_error"
    assert error["message"] == "The node a responded with status 404: 404 page not found"


# --- what a server may have ---


async def test_a_server_that_lists_a_local_model_s_name_later_gets_no_prompt(
    router: RunningRouter, start_node: StartNode, add_node: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "FOREIGN_POLL_S", 0.01)
    go = asyncio.Event()
    models = [b'{"data":[{"id":"a"}]}']

    async def busy(request: Request) -> None:
        await go.wait()
        await whole(request)

    async def lists(request: Request) -> None:
        await request.answer(models[0])

    mini, lm = await add_node(router, "mini", busy), await start_node(lists)
    await router.add(lm, "lm", kind="openai", accepted=("a",))
    models[0] = b'{"data":[{"id":"a"},{"id":"m"}]}'
    async with asyncio.timeout(WAIT_S):
        while not (view := router.core.fleet.by_name("lm")) or view.unaccepted != ("m",):
            await asyncio.sleep(0.001)
    callers = [await router.post({**STREAM, "stream": False}) for _ in range(12)]
    async with asyncio.timeout(WAIT_S):
        while [each.target for each in mini.requests].count(CHAT) < 8:
            await asyncio.sleep(0.001)
    go.set()
    for caller in callers:
        await caller.body()
        assert (caller.status, caller.headers["x-fleet-node"]) == (200, "mini")
    assert {each.target for each in lm.requests} == {"/v1/models"}


async def test_a_key_without_the_scope_external_stays_on_the_fleet_s_own_nodes(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    await add_node(router, "mini", whole)
    lm = await start_node(serving(whole, b'{"data":[{"id":"m"},{"id":"a"}]}'))
    await router.add(lm, "lm", kind="openai")
    router.core.names.put(alias("fast", "a", "m"))
    key = "Bearer " + router.new_key("inference")
    for model in ("m", "fast"):
        for _ in range(6):
            body = {**STREAM, "stream": False, "model": model}
            caller = await router.post(body, authorization=key)
            await caller.body()
            assert (caller.status, caller.headers["x-fleet-node"]) == (200, "mini")
    caller = await router.post({**STREAM, "model": "a"}, authorization=key)
    error = await caller.error()
    assert (caller.status, error["code"]) == (403, "external_not_allowed")
    assert [each.target for each in lm.requests] == ["/v1/models"] * len(lm.requests)
    await (await router.post({**STREAM, "stream": False, "model": "a"})).body()
    assert [each.target for each in lm.requests].count(CHAT) == 1


async def test_a_model_that_is_here_and_there_does_not_leave_when_the_nodes_are_gone(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    mini = await add_node(router, "mini", whole)
    await router.add(await start_node(serving(whole)), "lm", kind="openai")
    await mini.stop()
    async with asyncio.timeout(WAIT_S):
        while not (view := router.core.fleet.by_name("mini")) or view.reachable:
            await asyncio.sleep(0.001)
    key = "Bearer " + router.new_key("inference")
    caller = await router.post(STREAM, authorization=key)
    error = await caller.error()
    assert (caller.status, error["code"]) == (503, "no_node_ready")
    assert "the key lacks the scope external" in error["message"]


# --- clients of Ollama ---


OLLAMA = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "options": {"seed": 1}}


async def test_a_client_of_ollama_s_gets_a_translation(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await add(router, start_node, counted)
    caller = await router.post(OLLAMA, "/api/chat")
    lines = [json.loads(line) for line in (await caller.body()).splitlines()]
    assert caller.status == 200 and caller.headers["content-type"] == "application/x-ndjson"
    assert [line["message"]["content"] for line in lines] == ["hello", ""]
    assert (lines[-1]["done"], lines[-1]["eval_count"]) == (True, 7)
    (body,) = bodies(node)
    assert body["seed"] == 1 and body["stream_options"] == {"include_usage": True}
    written = await row(router)
    assert (written.prompt_tokens, written.completion_tokens) == (11, 7)
    await ended(router, OUTCOME_SERVED)


async def test_a_client_of_ollama_s_gets_a_whole_response(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def whole_chat(request: Request) -> None:
        answer = {
            "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        }
        await request.answer(json.dumps(answer).encode())

    await add(router, start_node, whole_chat)
    body = {"model": "m", "prompt": "hi", "stream": False}
    caller = await router.post(body, "/api/generate")
    answer = json.loads(await caller.body())
    assert caller.headers["content-type"] == "application/json"
    assert (answer["response"], answer["done"], answer["prompt_eval_count"]) == ("hello", True, 3)


@pytest.mark.parametrize("body", [b'{"error":{"message":"No such field."}}', b"No such field."])
async def test_a_client_of_ollama_s_gets_a_server_s_error_as_a_text(
    router: RunningRouter, start_node: StartNode, body: bytes
) -> None:
    async def refuse(request: Request) -> None:
        await request.answer(body, "400 Bad Request")

    await add(router, start_node, refuse)
    caller = await router.post(OLLAMA, "/api/chat")
    assert "No such field." in json.loads(await caller.body())["error"]
    assert caller.status == 400


async def test_an_error_that_begins_a_stream_is_a_status_for_a_client_of_ollama_s(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def fail(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b'data: {"error":{"message":"Gone.","type":"server_error"}}\n\n')
        await request.end_stream()

    await add(router, start_node, fail)
    caller = await router.post(OLLAMA, "/api/chat")
    assert json.loads(await caller.body())["error"] == "Gone."
    assert caller.status == 502


async def test_a_model_of_a_server_needs_no_load(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await add(router, start_node, counted)
    caller = await router.post({"model": "m"}, "/api/generate")
    assert json.loads(await caller.body())["done_reason"] == "load"
    assert bodies(node) == []


async def test_silence_of_a_server_is_filled_for_a_client_of_ollama_s(
    impatient: RunningRouter, start_node: StartNode
) -> None:
    go = asyncio.Event()

    async def late(request: Request) -> None:
        await go.wait()
        await counted(request)

    await add(impatient, start_node, late)
    caller = await impatient.post(OLLAMA, "/api/chat")
    assert await caller.head() == 200
    assert [await caller.chunk() for _ in range(2)] == [b" "] * 2
    go.set()
    lines = [json.loads(line) for line in (await caller.body()).splitlines()]
    assert [line["message"]["content"] for line in lines] == ["hello", ""]


async def test_a_late_error_of_a_server_is_the_last_line_for_a_client_of_ollama_s(
    impatient: RunningRouter, start_node: StartNode
) -> None:
    go = asyncio.Event()

    async def late(request: Request) -> None:
        await go.wait()
        await request.answer(b'{"error":{"message":"No such field."}}', "400 Bad Request")

    await add(impatient, start_node, late)
    caller = await impatient.post(OLLAMA, "/api/chat")
    assert await caller.head() == 200
    go.set()
    (line,) = [json.loads(line) for line in (await caller.body()).splitlines()]
    assert line["error"] == "No such field."


async def test_a_server_s_stream_without_done_has_its_last_line_for_a_client_of_ollama_s(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def short(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO)
        await request.chunk(b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n')
        await request.end_stream()

    await add(router, start_node, short)
    caller = await router.post(OLLAMA, "/api/chat")
    last = [json.loads(line) for line in (await caller.body()).splitlines()][-1]
    assert (last["done"], last["done_reason"]) == (True, "length")
