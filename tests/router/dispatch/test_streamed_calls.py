"""Calls whose arguments are streamed, through the router: real sockets, a real agent."""

from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script
from node.protocol.errors import BROKEN_CALL
from registry.records import UsageRecord
from tests.faults.rig import add_real, until_async
from tests.node.server.test_streamed_calls import (
    BROKEN,
    CALL,
    CUT_TOKENS,
    DIALECTS,
    HERMES,
    REQUESTS,
    limit,
    pieces_of,
)
from tests.node.serving import running
from tests.registry.rows import usage_rows
from tests.router.conftest import RunningRouter


async def through(router: RunningRouter, dialect: str, **fields: Any) -> tuple[int, str]:
    """Status and text of an answer."""
    path, body = REQUESTS[dialect]
    caller = await router.post({"model": "scripted", **body, **fields}, path)
    return await caller.head(), (await caller.body()).decode()


async def usage(router: RunningRouter, count: int) -> list[UsageRecord]:
    """Returns the usage of so many requests, as it is kept, the oldest first."""

    async def kept() -> list[UsageRecord]:
        async with router.core.registry.read() as session:
            rows = list(await usage_rows(session))
        return rows if len(rows) == count else []

    rows: list[UsageRecord] = await until_async(kept)
    return sorted(rows, key=lambda row: row.finished_at_s)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_passes_as_it_arrives_and_counts_whole_or_cut(
    router: RunningRouter, tmp_path: Path, dialect: str
) -> None:
    async with running(tmp_path / "a", Script(outputs=(CALL,)), **HERMES) as agent:
        await add_real(router, agent, "a")
        status, whole = await through(router, dialect, stream=True)
        assert status == 200
        _, cut = await through(router, dialect, stream=True, **limit(dialect))
        rows = await usage(router, 2)
    begun = "".join(pieces_of(cut))
    assert len(pieces_of(whole)) > 100
    assert 100 < len(begun) < 300
    assert "".join(pieces_of(whole)).startswith(begun)
    assert [row.reason for row in rows] == ["stop", "length"]
    tokens = [row.completion_tokens or 0 for row in rows]
    assert tokens[0] > len(CALL) // 4 - 5
    assert tokens[1] == CUT_TOKENS


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_that_breaks_off_is_no_fault_of_its_node(
    router: RunningRouter, tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with running(tmp_path / "a", Script(outputs=(BROKEN,)), **HERMES) as agent:
        await add_real(router, agent, "a")
        status, text = await through(router, dialect, stream=stream)
        rows = await usage(router, 1)
        await router.idle()
        # A failure would send the next try to another node, which has not the session's prefix.
        assert router.core.traffic.breakers() == []
    assert status == 500 or stream
    assert BROKEN_CALL in text
    assert [row.reason for row in rows] == ["stop"]
    assert rows[0].completion_tokens
