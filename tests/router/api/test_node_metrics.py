"""`GET /metrics/nodes/NAME`: an agent's figures through the router."""

from __future__ import annotations

import pytest

from node.protocol.messages import PATH_METRICS
from router.records.metrics import CONTENT_TYPE
from router.upstream import control_channel
from tests.router.conftest import AddNode, RawCaller, Request, RunningRouter, StartNode

FIGURES = b'mlx_fleet_node_model_waiting{model="m"} 3.0\n'


async def figures(request: Request) -> None:
    assert (request.method, request.target) == ("GET", PATH_METRICS)
    await request.answer(FIGURES)


async def read(router: RunningRouter, path: str, *scopes: str) -> RawCaller:
    key = router.new_key(*(scopes or ("metrics",)))
    return await router.send("GET", path, authorization=f"Bearer {key}")


async def test_a_key_of_scope_metrics_reads_an_agent_s_figures(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "studio", figures)
    for scope in ("metrics", "admin"):
        page = await read(router, "/metrics/nodes/studio", scope)
        assert (await page.body(), page.status) == (FIGURES, 200)
        assert page.headers["content-type"] == CONTENT_TYPE
    asked = [each for each in node.requests if each.target == PATH_METRICS]
    assert all(each.header("authorization") != f"Bearer {router.key}" for each in asked)
    refused = await read(router, "/metrics/nodes/studio", "inference")
    assert await refused.head() == 403


async def test_another_name_or_a_third_party_server_is_refused_with_the_reason(
    router: RunningRouter, start_node: StartNode, add_node: AddNode
) -> None:
    await add_node(router, "studio", figures)
    unknown = await read(router, "/metrics/nodes/studi")
    error = await unknown.error()
    assert unknown.status == 404 and "Did you mean studio?" in error["message"]

    async def models(request: Request) -> None:
        await request.answer(b'{"data":[{"id":"m"}]}')

    await router.add(await start_node(models), "ollama", "openai")
    foreign = await read(router, "/metrics/nodes/ollama")
    error = await foreign.error()
    assert foreign.status == 400 and "not a node agent" in error["message"]


async def test_figures_that_are_too_long_are_refused(
    router: RunningRouter, add_node: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "_CONTROL_BYTES", len(FIGURES) - 1)
    await add_node(router, "studio", figures)
    page = await read(router, "/metrics/nodes/studio")
    error = await page.error()
    assert (page.status, error["code"]) == (502, "node_refused")
