"""A request that its node refuses only within the stream, since the model had to be loaded first:
router and agent on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.agent import requests
from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.messages import FinishReason
from registry import nodes
from router.records.decisions import AttemptRecord
from tests.node.serving import RunningAgent, running
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    AddNode,
    Request,
    RunningRouter,
    node_record,
    running_router,
)

LOADING = Script(models=(ScriptedModel("m", context_tokens=8),), load_delay_s=1.0)
TURN: dict[str, Any] = {"role": "user", "content": "x" * 40}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [TURN]},
    "/v1/completions": {"prompt": "x" * 40},
    "/v1/messages": {"messages": [TURN], "max_tokens": 9},
    "/v1/responses": {"input": "x" * 40},
}


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[RunningRouter, RunningAgent]]:
    """The agent opens its streams while the model is still being loaded."""
    async with (
        running(folder / "agent", LOADING, stream_keepalive_s=0.01) as agent,
        running_router(folder) as router,
    ):
        url, node_id = f"http://127.0.0.1:{agent.port}", agent.app.agent.identity.node_id
        record = node_record(url, token=agent.token, node_id=node_id)
        await router.core.registry.write(lambda session: nodes.add(session, record))
        await asyncio.wait_for(router.core.watcher.watch(record), WAIT_S)
        yield router, agent


async def attempt(router: RunningRouter, request_id: str) -> AttemptRecord:
    """The only one of a request, once its node has reported the usage."""
    decided = router.core.decisions.find(request_id)
    assert decided is not None
    (only,) = decided.attempts
    async with asyncio.timeout(WAIT_S):
        while only.usage is None:
            await asyncio.sleep(0)
    return only


@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_within_the_stream_is_recorded_as_one_with_the_node_s_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    # As where only the loaded engine knows how much fits into it.
    monkeypatch.setattr(requests, "may_overflow", lambda _request: False)
    async with fleet(tmp_path) as (router, _agent):
        caller = await router.post({"model": "m", "stream": True, **BODIES[path]}, path)
        assert await caller.head() == 200
        assert b"too long" in (answer := await caller.body()) or b"context_length" in answer
        record = await attempt(router, caller.headers["x-request-id"])
        assert (record.outcome, record.ttft_s) == ("refused", None)
        assert record.usage is not None
        assert (record.usage.reason, record.usage.completion_tokens) == (
            FinishReason.REFUSED,
            0,
        )
        assert record.usage.prompt_tokens >= 10
        (row,) = router.core.ledger.pop_rows()
        assert (row.reason, row.seq > 0, row.prompt_tokens) == ("refused", True, None)
        counted = router.core.metrics.text().decode()
        assert 'outcome="refused"} 1.0' in counted and 'outcome="served"' not in counted


async def test_what_a_server_of_others_refuses_within_its_stream_is_refused(
    router: RunningRouter, add_node: AddNode
) -> None:
    error = {"message": "No such tool.", "type": "invalid_request_error", "param": "tools"}

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b": wait\n\n")
        await request.chunk(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        await request.end_stream()

    await add_node(router, "a", script)
    caller = await router.post({"model": "m", "stream": True})
    assert b"No such tool." in await caller.body()
    await router.idle()
    assert 'outcome="refused"} 1.0' in router.core.metrics.text().decode()
