"""Deadlines that pass after a node has taken the request."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.fakes import AT_ONCE_S
from tests.router.conftest import WAIT_S, AddNode, Request, RunningRouter, Script
from tests.router.dispatch.test_relay import (
    DONE,
    HELLO,
    STREAM,
    WHOLE,
    drop,
    hang,
    in_band_error,
    request_counts,
    stream,
)
from tests.router.dispatch.test_relay_leaving import (
    Ending,
    comment_only,
    half_answer,
    head_only,
)
from tests.router.leases import open_leases

DEADLINE_S = 0.5
LATE = "deadline_exceeded"

PHASES: list[Any] = [
    pytest.param(STREAM, hang, id="stream before the node's head"),
    pytest.param(STREAM, head_only, id="stream before its first byte"),
    pytest.param(STREAM, comment_only, id="stream after a comment"),
    pytest.param(WHOLE, hang, id="whole answer before the node's head"),
    pytest.param(WHOLE, half_answer, id="whole answer, half received"),
]


async def ends_in_time(router: RunningRouter, ending: Ending, begin_s: float) -> None:
    """The node's work has ended soon after the deadline, and nothing of it is left."""
    await router.idle()
    async with asyncio.timeout(WAIT_S):
        while not ending.gone_s:
            await asyncio.sleep(0)
    assert DEADLINE_S <= ending.gone_s - begin_s < DEADLINE_S + AT_ONCE_S
    assert open_leases(router.core.traffic) == 0


@pytest.mark.parametrize(("body", "script"), PHASES)
async def test_an_answer_that_has_not_begun_at_its_deadline_is_ended(
    router: RunningRouter, add_node: AddNode, body: dict[str, object], script: Script
) -> None:
    ending = Ending(script)
    node = await add_node(router, "a", ending)
    other = await add_node(router, "b", ending)
    begin_s = asyncio.get_running_loop().time()
    caller = await router.post(body, x_fleet_deadline_s=str(DEADLINE_S))
    if script is comment_only:
        assert (await in_band_error(caller))["code"] == LATE
    else:
        error = json.loads(await caller.body())["error"]
        assert (caller.status, error["code"]) == (504, LATE)
        assert "deadline" in error["message"]
    await ends_in_time(router, ending, begin_s)
    assert sum(request_counts(node, other)) == 1
    text = router.core.metrics.text().decode()
    assert f'outcome="{LATE}"}} 1.0' in text


async def test_a_deadline_that_passes_in_filled_silence_is_an_event_of_the_stream(
    impatient: RunningRouter, add_node: AddNode
) -> None:
    ending = Ending(hang)
    await add_node(impatient, "a", ending)
    begin_s = asyncio.get_running_loop().time()
    caller = await impatient.post(STREAM, x_fleet_deadline_s=str(DEADLINE_S))
    assert await caller.head() == 200
    assert (await in_band_error(caller))["code"] == LATE
    await ends_in_time(impatient, ending, begin_s)


async def test_an_answer_that_has_begun_goes_on_after_its_deadline(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def slow(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO)
        while time.monotonic() < deadline_s:
            await asyncio.sleep(0)
        await request.chunk(DONE)
        await request.end_stream()

    deadline_s = time.monotonic() + 2 * DEADLINE_S
    await add_node(router, "a", slow)
    caller = await router.post(STREAM, x_fleet_deadline_s=str(DEADLINE_S))
    assert (await caller.body()).endswith(HELLO + DONE)
    await router.idle()


async def test_a_retry_has_what_is_left_of_the_time(
    router: RunningRouter, add_node: AddNode
) -> None:
    ending = Ending(hang)
    scripts: list[Script] = [drop, ending]

    async def script(request: Request) -> None:
        await scripts.pop(0)(request)

    await add_node(router, "a", script)
    await add_node(router, "b", script)
    begin_s = asyncio.get_running_loop().time()
    caller = await router.post(WHOLE, x_fleet_deadline_s=str(DEADLINE_S))
    assert (await caller.error())["code"] == LATE
    await ends_in_time(router, ending, begin_s)
    assert scripts == []


async def test_a_request_in_time_is_served_as_ever(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", stream)
    caller = await router.post(STREAM, x_fleet_deadline_s="60")
    assert (await caller.body()).endswith(HELLO + DONE)
    assert caller.status == 200
