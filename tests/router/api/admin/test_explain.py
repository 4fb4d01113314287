"""`/admin/explain`, against a real router with scripted nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from tests.router.conftest import (
    CHAT,
    FINISHED,
    WAIT_S,
    AddNode,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    silent,
)
from tests.router.dispatch.test_relay import WHOLE, refuse, whole
from tests.router.leases import open_leases

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def call(router: RunningRouter, method: str, path: str, body: object = None) -> Any:
    """The answer of the admin API, whatever its status."""
    key = router.core.settings.current.admin_key_file.read_text().strip()
    data = b"" if body is None else json.dumps(body).encode()
    caller = await router.send(
        method,
        f"/admin/explain{path}",
        data,
        authorization=f"Bearer {key}",
        content_type="application/json",
        content_length=str(len(data)),
    )
    return json.loads(await caller.body())


async def served(router: RunningRouter) -> str:
    """Sends a request; the id that its answer names."""
    caller = await router.post(WHOLE)
    await caller.body()
    await router.idle()
    return caller.headers["x-request-id"]


async def account(router: RunningRouter, node: ScriptedNode, request_id: str) -> None:
    """The node reports the usage of the request that it has served."""
    request = next(each for each in node.requests if each.target == CHAT)
    finished = msgspec.structs.replace(
        FINISHED,
        request_id=request.header("x-request-id"),
        origin=request.header("x-fleet-origin"),
        proof=request.header("x-fleet-proof"),
    )
    await node.tell(finished)
    decided = router.core.decisions.find(request_id)
    assert decided is not None
    async with asyncio.timeout(WAIT_S):
        while decided.attempts[-1].usage is None:
            await asyncio.sleep(0)


async def test_a_dry_run_shows_every_node_and_sends_nothing(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", silent)
    await add_node(router, "b", silent)
    decision = await call(router, "POST", "", {"body": BODY, "headers": {"X-Session-Id": "s"}})
    assert decision["model"] == "m" and decision["node"] in ("a", "b")
    assert decision["reason"].startswith(decision["node"])
    costs = {cost["node"]: cost for cost in decision["costs"]}
    assert set(costs) == {"a", "b"}
    chosen = costs[decision["node"]]
    assert chosen["chosen"] and not chosen["excluded"]
    assert chosen["total_s"] == pytest.approx(sum(chosen["terms_s"].values()))
    assert open_leases(router.core.traffic) == 0
    assert len(router.core.decisions) == 0


async def test_what_is_cached_on_a_foreign_server_is_marked_as_a_guess(
    router: RunningRouter, add_node: AddNode, start_node: StartNode
) -> None:
    async def foreign(request: Request) -> None:
        if request.target.endswith("/models"):
            await request.answer(b'{"data":[{"id":"m"}]}')
        else:
            usage = {"prompt_tokens": 2_000, "completion_tokens": 2}
            await request.answer(json.dumps({"choices": [{}], "usage": usage}).encode())

    body = {**BODY, "messages": [{"role": "user", "content": "word " * 1_600}]}
    await router.add(await start_node(foreign), "f", "openai")
    await (await router.post(body)).body()
    await router.idle()
    await add_node(router, "a", silent)
    decision = await call(router, "POST", "", {"body": body})
    costs = {cost["node"]: cost for cost in decision["costs"]}
    assert {name: cost["estimated"] for name, cost in costs.items()} == {"a": False, "f": True}
    # All of what it served last is taken to be there, and nothing where nothing was reported.
    assert costs["a"]["cached_tokens"] == 0
    assert 1_500 <= costs["f"]["cached_tokens"] <= 2_000


@pytest.mark.parametrize(
    ("dry_run", "code", "word"),
    [
        ({"body": {**BODY, "model": "nosuch"}}, "model_not_found", "router models"),
        ({"body": {"messages": []}}, "invalid_value", "model"),
        ({"body": BODY, "path": "/v1/embeddings"}, "invalid_value", "/v1/chat/completions"),
        ({"body": [BODY]}, "invalid_value", "body"),
        ({"body": BODY, "headers": {"x-fleet-priority": "now"}}, "invalid_value", "priority"),
        ({"body": {**BODY, "user": "\ud800"}}, "invalid_value", "character"),
        ({"body": BODY, "headers": {"x": "\ud800"}}, "invalid_value", "character"),
    ],
)
async def test_a_dry_run_that_cannot_be_is_refused_with_what_to_do(
    router: RunningRouter, add_node: AddNode, dry_run: dict[str, Any], code: str, word: str
) -> None:
    await add_node(router, "a", silent)
    error = (await call(router, "POST", "", dry_run))["error"]
    assert error["code"] == code and word in error["message"]


async def test_a_model_whose_nodes_are_away_is_explained(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", silent)
    router.core.fleet.lost("id-a", "It went.")
    decision = await call(router, "POST", "", {"body": BODY})
    assert decision["node"] is None and "router nodes" in decision["reason"]
    assert [cost["excluded"] for cost in decision["costs"]] == ["It cannot be reached."]


async def test_a_served_request_shows_what_was_expected_and_what_was_measured(
    router: RunningRouter, add_agent: AddNode
) -> None:
    node = await add_agent(router, "a", whole)
    request_id = await served(router)
    await account(router, node, request_id)
    decided = await call(router, "GET", f"/{request_id}")
    assert (decided["path"], decided["model"]) == ("/v1/chat/completions", "m")
    assert decided["priority"] == "default" and decided["rejected"] is None
    (attempt,) = decided["attempts"]
    assert attempt["decision"]["node"] == "a" and attempt["outcome"] == "served"
    assert attempt["usage"]["cached_tokens"] == FINISHED.cached_tokens
    assert attempt["usage"]["prefill_s"] == FINISHED.prefill_s


async def test_a_retried_request_shows_both_attempts(
    router: RunningRouter, add_agent: AddNode
) -> None:
    for name in ("a", "b"):
        await add_agent(router, name, refuse("503 Service Unavailable"))
    decided = await call(router, "GET", f"/{await served(router)}")
    first, second = decided["attempts"]
    assert {first["decision"]["node"], second["decision"]["node"]} == {"a", "b"}
    assert (first["outcome"], second["outcome"]) == ("refused", "refused")


async def test_a_rejected_request_shows_why(router: RunningRouter, add_node: AddNode) -> None:
    await add_node(router, "a", silent)
    router.core.fleet.lost("id-a", "It went.")
    decided = await call(router, "GET", f"/{await served(router)}")
    assert decided["attempts"] == []
    assert decided["rejected"]["kind"] == "no_node"


async def test_a_request_that_is_not_remembered_is_refused(router: RunningRouter) -> None:
    error = (await call(router, "GET", "/req_nosuch"))["error"]
    assert error["code"] == "request_not_found" and "2,000" in error["message"]
