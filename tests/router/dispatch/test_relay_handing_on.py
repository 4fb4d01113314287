"""Tests the errors that the relay raises, so that another model can take the request, and those
that it passes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.protocol.messages import StatusEvent
from node.protocol.overflow import Overflow
from tests.router.conftest import (
    CHAT,
    AddNode,
    Request,
    RunningRouter,
    Script,
    StartNode,
    alias,
    model_status,
    node_status,
)

MESSAGES = "/v1/messages"
OLLAMA = "/api/chat"
AGENT = (
    b'{"error":{"message":"%b","type":"invalid_request_error","param":"messages",'
    b'"code":"context_length_exceeded"}}' % Overflow(9, 8).openai.encode()
)
TOO_LONG = {
    "agent": AGENT,
    "llama.cpp": b'{"error":{"code":400,"message":"request (9 tokens) exceeds the available '
    b'context size (8 tokens), try increasing it","type":"exceed_context_size_error",'
    b'"n_prompt_tokens":9,"n_ctx":8}}',
    "lm studio": b'{"error":"Trying to keep the first 9 tokens when context the overflows. However,'
    b' the model is loaded with context length of only 8 tokens, which is not enough."}',
    "ollama": b'{"error":{"message":"the input length exceeds the context length",'
    b'"type":"api_error","param":null,"code":null}}',
    "vllm": b'{"object":"error","message":"This model\'s maximum context length is 8 tokens.",'
    b'"type":"BadRequestError","param":null,"code":400}',
}
OTHER = b'{"error":{"message":"No.","type":"invalid_request_error","param":null,"code":null}}'
OK = b'{"ok":true}'


def only_b(answer: bytes, status: str = "400 Bad Request", **headers: str) -> Script:
    """A node whose model `a` refuses, and whose `b` serves."""

    async def script(request: Request) -> None:
        if json.loads(request.body)["model"] == "b":
            await request.answer(OK)
        else:
            await request.answer(answer, status, **headers)

    return script


async def add(router: RunningRouter, start_node: StartNode, script: Script) -> None:
    status = node_status(model_status("a"), model_status("b"), node_id="id-a")
    await router.add(await start_node(script, first_events=(StatusEvent(status),)))
    router.core.names.put(alias("auto", "a", "b"))


async def call(router: RunningRouter, model: str, path: str = CHAT, **fields: Any) -> Any:
    """Status, body, and the model that answered."""
    caller = await router.post({"model": model, "max_tokens": 1, **fields}, path)
    body = await caller.body()
    return caller.status, body, caller.headers.get("x-fleet-model", "")


@pytest.mark.parametrize("server", TOO_LONG)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_goes_to_the_next_model(
    router: RunningRouter, start_node: StartNode, server: str, stream: bool
) -> None:
    await add(router, start_node, only_b(TOO_LONG[server]))
    assert await call(router, "auto", stream=stream) == (200, OK, "b")
    assert await call(router, "a", stream=stream) == (400, TOO_LONG[server], "a")


async def test_in_anthropic_s_dialect_it_does_too(
    router: RunningRouter, start_node: StartNode
) -> None:
    error = {"type": "invalid_request_error", "message": Overflow(9, 8).anthropic}
    answer = json.dumps({"type": "error", "error": error}).encode()
    await add(router, start_node, only_b(answer))
    assert await call(router, "auto", MESSAGES) == (200, OK, "b")
    assert await call(router, "a", MESSAGES) == (400, answer, "a")


async def test_an_error_event_that_arrives_first_goes_on_too(
    router: RunningRouter, start_node: StartNode
) -> None:
    event = b": loading\n\ndata: " + AGENT + b"\n\n"

    async def script(request: Request) -> None:
        if json.loads(request.body)["model"] == "b":
            await request.answer(OK)
            return
        await request.begin_stream()
        await request.chunk(event)
        await request.end_stream()

    await add(router, start_node, script)
    assert await call(router, "auto", stream=True) == (200, OK, "b")
    assert await call(router, "a", stream=True) == (200, event, "a")


async def test_other_refusals_are_passed_on(router: RunningRouter, start_node: StartNode) -> None:
    await add(router, start_node, only_b(OTHER))
    assert await call(router, "auto") == (400, OTHER, "a")


GONE = {
    "agent": b'{"error":{"message":"No model \'a\' here.","type":"invalid_request_error",'
    b'"param":"model","code":"model_not_found"}}',
    "ollama": b'{"error":{"message":"model \\"a\\" not found, try pulling it first",'
    b'"type":"api_error","param":null,"code":null}}',
    "vllm": b'{"object":"error","message":"The model `a` does not exist.","code":404}',
}


@pytest.mark.parametrize("server", GONE)
async def test_a_model_that_has_just_gone_from_its_server_is_requested_elsewhere(
    router: RunningRouter, start_node: StartNode, server: str
) -> None:
    await add(router, start_node, only_b(GONE[server], "404 Not Found"))
    assert await call(router, "auto") == (200, OK, "b")
    assert await call(router, "a") == (404, GONE[server], "a")


async def test_what_else_is_not_found_is_passed_on(
    router: RunningRouter, start_node: StartNode
) -> None:
    await add(router, start_node, only_b(OTHER, "404 Not Found"))
    assert await call(router, "auto") == (404, OTHER, "a")


@pytest.mark.parametrize("status", ["500 Oops", "503 Service Unavailable"])
@pytest.mark.parametrize("headers", [{}, {"x_should_retry": "false"}])
async def test_a_model_that_fails_is_followed_by_the_next(
    router: RunningRouter, start_node: StartNode, status: str, headers: dict[str, str]
) -> None:
    await add(router, start_node, only_b(OTHER, status, **headers))
    assert await call(router, "auto") == (200, OK, "b")
    assert await call(router, "a") == (int(status[:3]), OTHER, "a")


async def test_a_model_that_is_busy_is_not_and_its_retry_after_is_passed_on(
    router: RunningRouter, start_node: StartNode
) -> None:
    await add(router, start_node, only_b(OTHER, "429 Too Many Requests", retry_after="7"))
    caller = await router.post({"model": "auto"})
    error = json.loads(await caller.body())["error"]
    assert (caller.status, error["code"]) == (429, "queue_full")
    assert error["message"] == "The node a reports: No."
    assert caller.headers["retry-after"] == "7"


NO_PATH = {
    "beside /v1": b'{"message":"There is nothing at /api/chat.","code":"not_found"}',
    "below /v1": b'{"error":{"message":"There is nothing at /v1/new.","type":'
    b'"invalid_request_error","param":null,"code":"not_found"}}',
}


@pytest.mark.parametrize("body", NO_PATH.values(), ids=NO_PATH)
async def test_an_agent_that_does_not_have_a_path_yet_is_named_if_no_other_node_has_it(
    router: RunningRouter, add_node: AddNode, body: bytes
) -> None:
    async def older(request: Request) -> None:
        await request.answer(body, "404 Not Found")

    async def newer(request: Request) -> None:
        await request.answer(OK)

    request = {"stream": False, "messages": [{"role": "user", "content": "hello"}]}
    await add_node(router, "a", older)
    status, error, _ = await call(router, "m", OLLAMA, **request)
    assert status == 502
    assert json.loads(error)["error"].startswith(
        "The node a does not have /api/chat: it runs an ol"
    )
    assert b"`router upgrade-plan`" in error
    await add_node(router, "b", newer)
    for _ in range(3):
        assert (await call(router, "m", OLLAMA, **request))[:2] == (200, OK)
    assert router.core.traffic.breakers() == []
