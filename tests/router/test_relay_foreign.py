"""Servers that are no node agents, on real sockets: how they are asked, and what they tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.records import UsageRecord
from tests.router.conftest import CHAT, Request, RunningRouter, Script, ScriptedNode, StartNode
from tests.router.test_foreign import DONE, HELLO, USAGE

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 9000}]}
ASKED = {**STREAM, "stream_options": {"include_usage": True}}
COUNT = USAGE["lm studio"]


def serving(answer: Script, models: bytes = b'{"data":[{"id":"m"}]}') -> Script:
    async def script(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(models)
        else:
            await answer(request)

    return script


async def counted(request: Request) -> None:
    """A stream that ends with a count where it is asked for one."""
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
    (written,) = router.core.ledger.take_rows()
    return written


def bodies(node: ScriptedNode) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in node.requests if each.target == CHAT]


@pytest.mark.parametrize("body", [STREAM, ASKED])
async def test_the_count_is_kept_and_passed_on_only_where_it_was_asked_for(
    router: RunningRouter, start_node: StartNode, body: dict[str, Any]
) -> None:
    node = await add(router, start_node, counted)
    caller = await router.post(body)
    assert await caller.body() == HELLO + (COUNT if body is ASKED else b"") + DONE
    assert bodies(node) == [ASKED]
    kept = await row(router)
    assert (kept.prompt_tokens, kept.cached_tokens, kept.completion_tokens) == (11, 5, 7)
    told = router.core.metrics.text().decode()
    assert 'foreign_tokens_total{kind="completion",model="m",node="a"} 7.0' in told
    decided = router.core.dispatcher.decisions.find(kept.request_id)
    assert decided is not None
    accounts = decided.attempts[-1].accounts
    assert accounts is not None and accounts.prompt_tokens == 11


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


async def test_a_server_that_takes_no_such_question_is_asked_it_once(
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
    assert bodies(node) == [ASKED, STREAM, STREAM]
    caller = await router.post(ASKED)
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
