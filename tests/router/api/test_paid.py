"""Paid servers: only an alias leads there, and only with a budget."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from registry import nodes
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_fallbacks import TOO_LONG
from tests.router.api.test_v1 import inferences, refused
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
    node_record,
    running_router,
)
from tests.router.dispatch.test_relay import refuse

PRICES = {"input": 10.0, "output": 1000.0}
"""An answer of 100 tokens costs a tenth."""


USED = b'{"usage":{"prompt_tokens":1000,"completion_tokens":20}}'


async def cloud(request: Request) -> None:
    """A paid server with the models `m` and `large`."""
    if request.target == "/v1/models":
        await request.answer(b'{"data":[{"id":"m"},{"id":"large"}]}')
    else:
        await request.answer(USED if request.body.find(b'"usage"') > 0 else b'{"cloud":true}')


async def a_cloud(
    router: RunningRouter, start_node: StartNode, script: Script = cloud
) -> ScriptedNode:
    node = await start_node(script)
    record = replace(node_record(node.url, "cloud", "openai"), prices=PRICES)
    await router.core.registry.write(lambda session: nodes.add(session, record))
    await asyncio.wait_for(router.core.watcher.watch(record), WAIT_S)
    return node


def requested_models(node: ScriptedNode) -> list[str]:
    """The models that were requested from it."""
    requests = [each for each in inferences(node) if each.target == CHAT]
    return [json.loads(each.body)["model"] for each in requests]


async def set_budget(router: RunningRouter, amount: float | None) -> None:
    status, row = await call(router, "PATCH", "/keys/first", {"paid_budget": amount})
    assert (status, row["paid_budget"]) == (200, amount)


async def free(request: Request) -> None:
    await request.answer(b"{}")


async def test_no_plain_name_leads_to_a_paid_server(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    node = await a_cloud(router, start_node)
    await set_budget(router, 20)
    error = await refused(await router.post({"model": "large"}), 404, "model_not_found")
    assert "router alias set" in error["message"]
    await refused(await router.post({"model": "m"}), 404, "model_not_found")
    own = await add_node(router, "a", free)
    for _ in range(3):
        assert await (await router.post({"model": "m"})).head() == 200
    assert requested_models(node) == [] and len(inferences(own)) == 3
    models = await router.send("GET", "/v1/models", x_api_key=router.key)
    assert b"large" not in await models.body()
    _, rows = await call(router, "GET", "/models")
    places = {(row["name"], place["node"]): place["paid"] for row in rows for place in row["nodes"]}
    assert places == {("large", "cloud"): True, ("m", "cloud"): True, ("m", "a"): False}


async def test_a_key_without_a_budget_does_not_get_there(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    node = await a_cloud(router, start_node)
    router.core.names.put(alias("big", "large"))
    error = await refused(await router.post({"model": "big"}), 403, "paid_not_allowed")
    assert "router keys set-budget" in error["message"]
    await add_node(router, "a", free)
    router.core.names.put(alias("auto", "large", "m"))
    caller = await router.post({"model": "auto"})
    assert await caller.head() == 200 and caller.headers["x-fleet-model"] == "m"
    assert requested_models(node) == []


async def test_a_free_model_that_is_down_is_replaced_by_a_paid_one(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    node = await a_cloud(router, start_node)
    own = await add_node(router, "a", free)
    router.core.names.put(alias("auto", "m", "m@cloud"))
    await set_budget(router, 20)
    await (await router.post({"model": "auto", "max_tokens": 100})).body()
    assert requested_models(node) == []
    await own.stop()
    caller = await router.post({"model": "auto", "max_tokens": 100})
    assert await caller.head() == 200 and caller.headers["x-fleet-node"] == "cloud"
    assert requested_models(node) == ["m"]


@pytest.mark.parametrize(
    ("selector", "statuses", "paid"),
    [("first", [429] * 4, []), ("spillover", [200] * 4, ["m"] * 4)],
)
async def test_a_free_model_whose_server_is_full_leads_to_a_paid_one_only_for_spillover(
    router: RunningRouter,
    start_node: StartNode,
    add_node: AddNode,
    selector: str,
    statuses: list[int],
    paid: list[str],
) -> None:
    node = await a_cloud(router, start_node)
    await add_node(router, "a", refuse("429 Too Many Requests", retry_after="5"))
    router.core.names.put(alias("auto", "m", "m@cloud", selector=selector, spill_at=4))
    await set_budget(router, 20)
    body = {"model": "auto", "max_tokens": 100}
    assert [await (await router.post(body)).head() for _ in statuses] == statuses
    assert requested_models(node) == paid


async def test_a_budget_that_is_used_up_ends_it_for_this_month(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_cloud(router, start_node)
    router.core.names.put(alias("big", "large"))
    await set_budget(router, 0.25)
    body = {"model": "big", "max_tokens": 100}
    for _ in range(2):
        assert await (await router.post(body)).head() == 200
    caller = await router.post(body)
    await refused(caller, 429, "paid_budget_used")
    assert caller.headers["x-should-retry"] == "false"
    assert 0 < int(caller.headers["retry-after"]) <= 31 * 86_400
    await set_budget(router, 1)
    assert await (await router.post(body)).head() == 200


async def test_where_nothing_is_left_for_the_next_target_an_overlong_prompt_gets_its_error(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    node = await a_cloud(router, start_node)
    await add_node(router, "a", refuse("400 Bad Request", TOO_LONG))
    router.core.names.put(alias("auto", "m", "m@cloud"))
    await set_budget(router, 0.000001)
    caller = await router.post({"model": "auto", "max_tokens": 100})
    await refused(caller, 400, "context_length_exceeded")
    assert requested_models(node) == []


async def test_requests_at_once_share_what_is_left_of_a_budget(
    router: RunningRouter, start_node: StartNode
) -> None:
    go_on = asyncio.Event()

    async def slow(request: Request) -> None:
        if request.target == CHAT:
            await go_on.wait()
        await cloud(request)

    node = await a_cloud(router, start_node, slow)
    router.core.names.put(alias("big", "large"))
    await set_budget(router, 0.25)
    body = {"model": "big", "max_tokens": 100}
    callers = await asyncio.gather(*(router.post(body) for _ in range(6)))
    async with asyncio.timeout(WAIT_S):
        while len(requested_models(node)) < 2:
            await asyncio.sleep(0.005)
    go_on.set()
    statuses = sorted([await caller.head() for caller in callers])
    assert statuses == [200, 200, 429, 429, 429, 429]
    assert requested_models(node) == ["large"] * 2
    await router.idle()
    assert 0.2 <= router.core.budgets.spent(router.caller().key_id) <= 0.25


async def test_what_was_spent_is_known_after_a_restart_and_shown(
    tmp_path: Path, start_node: StartNode
) -> None:
    async with running_router(tmp_path) as router:
        await a_cloud(router, start_node)
        router.core.names.put(alias("big", "large"))
        await set_budget(router, 20)
        await (await router.post({"model": "big", "max_tokens": 100})).body()
        await router.idle()
        key_id = router.caller().key_id
        spent = router.core.budgets.spent(key_id)
        assert 0.1 <= spent < 0.11
    async with running_router(tmp_path) as router:
        assert router.core.budgets.spent(key_id) == spent
        assert router.caller().paid_budget == 20
        (view,) = router.core.fleet.snapshot
        assert view.is_paid
        _, (row,) = await call(router, "GET", "/usage")
        assert (row["model"], row["cost"]) == ("large", spent)


async def test_an_answer_costs_what_its_server_reports_and_gives_the_rest_back(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_cloud(router, start_node)
    router.core.names.put(alias("big", "large"))
    await set_budget(router, 0.2)
    for _ in range(3):
        caller = await router.post({"model": "big", "max_tokens": 100, "user": "usage"})
        assert await caller.head() == 200
        await caller.body()
    await router.idle()
    spent = 3 * (1000 * 10 + 20 * 1000) / 1e6
    assert abs(router.core.budgets.spent(router.caller().key_id) - spent) < 1e-9
    assert [row.cost for row in router.core.ledger.pop_rows()] == [spent / 3] * 3
    series = 'mlx_fleet_paid_cost_total{model="large",node="cloud"} '
    (line,) = (each for each in router.core.metrics.text().decode().splitlines() if series in each)
    assert abs(float(line.removeprefix(series)) - spent) < 1e-9
