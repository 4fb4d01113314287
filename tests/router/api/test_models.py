"""`/v1/models`: one shape for OpenAI's and Anthropic's clients, with what the nodes report."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from node.protocol.messages import ModelState, ModelStatus, StatusEvent
from router.api.models import Models
from router.fleet.fleet import Fleet
from router.routing.model_names import Names
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_v1 import a_node, refused
from tests.router.conftest import (
    RunningRouter,
    StartNode,
    alias,
    model_status,
    node_record,
    node_status,
)

FIELDS = {
    "id",
    "object",
    "created",
    "owned_by",
    "type",
    "display_name",
    "created_at",
    "context_window",
    "max_model_len",
    "max_input_tokens",
    "lifecycle",
    "state",
    "capabilities",
    "tool_call_parser",
    "reasoning_parser",
}


async def listed(router: RunningRouter, name: str = "") -> dict[str, Any]:
    path = f"/v1/models/{name}" if name else "/v1/models"
    caller = await router.send("GET", path, x_api_key=router.key)
    answer = json.loads(await caller.body())
    assert caller.status == 200 and isinstance(answer, dict)
    return answer


def fleet_of(*models: ModelStatus) -> Fleet:
    """A fleet with one node for each status."""
    fleet = Fleet()
    for number, model in enumerate(models):
        record = node_record(f"http://{number}", str(number))
        fleet.add(record)
        fleet.on_status(record.id, node_status(model, node_id=record.id))
    return fleet


async def test_models_and_aliases_are_listed(router: RunningRouter, start_node: StartNode) -> None:
    await a_node(router, start_node, "org/b", "a")
    router.core.names.put(alias("fast", "org/b"))
    router.core.names.put(alias("dangling", "nobody-has-this"))
    answer = await listed(router)
    assert [model["id"] for model in answer.pop("data")] == ["a", "fast", "org/b"]
    assert answer == {"object": "list", "has_more": False, "first_id": "a", "last_id": "org/b"}


async def test_a_fleet_without_models_has_an_empty_list(router: RunningRouter) -> None:
    assert await listed(router) == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


async def test_a_model_and_its_alias_show_what_its_node_reports(
    router: RunningRouter, start_node: StartNode
) -> None:
    status = model_status(
        "org/b",
        context_tokens=4096,
        capabilities=("completion", "tools", "reasoning"),
        tool_parser="hermes",
        reasoning_parser="think",
    )
    node = await start_node(lambda _: None, first_events=(StatusEvent(node_status(status)),))
    await router.add(node)
    router.core.names.put(alias("fast", "org/b"))
    for name in ("fast", "org/b", "org%2Fb"):
        model = await listed(router, name)
        assert set(model) == FIELDS
        assert model["id"] == model["display_name"] == name.replace("%2F", "/")
        assert (model["object"], model["type"]) == ("model", "model")
        assert model["context_window"] == model["max_model_len"] == 4096
        assert model["capabilities"] == ["completion", "tools", "reasoning"]
        assert (model["tool_call_parser"], model["reasoning_parser"]) == ("hermes", "think")
        moment = datetime.fromisoformat(model["created_at"])
        assert moment.timestamp() == model["created"]
    assert await listed(router, "org/b") in (await listed(router))["data"]


def test_of_several_nodes_what_is_true_of_each_is_shown() -> None:
    fleet = fleet_of(
        model_status(context_tokens=8192, capabilities=("completion", "tools")),
        model_status(),
        model_status(context_tokens=4096, capabilities=("completion",), tool_parser="hermes"),
        model_status("other", context_tokens=1, capabilities=("x",)),
    )
    model = json.loads(Models(fleet, Names(fleet), 0).one("m"))
    assert model["context_window"] == 4096
    assert model["capabilities"] == ["completion"]
    assert model["tool_call_parser"] == "hermes"
    assert model["created_at"] == "1970-01-01T00:00:00Z"


def test_a_model_of_which_nothing_is_reported_shows_nothing() -> None:
    fleet = fleet_of(model_status())
    model = json.loads(Models(fleet, Names(fleet), 0).one("m"))
    assert model["capabilities"] == []
    unknown = {"context_window", "max_model_len", "max_input_tokens"}
    assert not (unknown | {"tool_call_parser", "reasoning_parser"}) & set(model)


def test_a_model_is_shown_as_near_as_the_nearest_of_its_nodes() -> None:
    states = (ModelState.FAILED, ModelState.ON_DISK, ModelState.DRAINING, ModelState.LOADING)
    known = (ModelState.PULLING, *states, ModelState.READY)
    assert set(known) == set(ModelState) - {ModelState.UNKNOWN}
    for count in range(2, len(known) + 1):
        fleet = fleet_of(*(model_status(state=state) for state in known[:count]))
        assert (
            json.loads(Models(fleet, Names(fleet), 0).one("m"))["state"] == known[count - 1].value
        )


@pytest.mark.parametrize("name", ["x", "dangling"])
async def test_a_model_that_nobody_has_is_404(router: RunningRouter, name: str) -> None:
    router.core.names.put(alias("dangling", "nobody-has-this"))
    caller = await router.send("GET", f"/v1/models/{name}", x_api_key=router.key)
    await refused(caller, 404, "model_not_found")


async def test_a_key_sees_only_the_models_that_it_may_use(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "qwen-small", "llama")
    router.core.names.put(alias("fast", "llama"))
    body = {"name": "ci", "models": ["qwen*", "fast"]}
    key = (await call(router, "POST", "/keys", body))[1]["key"]
    listed = json.loads(await (await router.send("GET", "/v1/models", x_api_key=key)).body())
    assert [model["id"] for model in listed["data"]] == ["fast", "qwen-small"]
    for name, status in (("fast", 200), ("qwen-small", 200), ("llama", 404), ("qwen-x", 404)):
        shown = await router.send("GET", f"/v1/models/{name}", x_api_key=key)
        assert await shown.head() == status
    for name in ("fast", "qwen-small"):
        assert (
            await (await router.post({"model": name}, x_api_key=key, authorization="")).head()
            == 200
        )
    tags = await router.send("GET", "/api/tags", x_api_key=key)
    assert b"qwen-small" in (listed_tags := await tags.body()) and b'"llama' not in listed_tags
    caller = await router.post({"model": "llama"}, "/api/chat", x_api_key=key, authorization="")
    assert await caller.head() == 404
    caller = await router.post({"model": "llama"}, x_api_key=key, authorization="")
    error = await refused(caller, 404, "model_not_found")
    assert error["message"].startswith("There is no model 'llama' for this API key")


async def test_a_key_for_metrics_reads_nothing_else(router: RunningRouter) -> None:
    key = (await call(router, "POST", "/keys", {"name": "p", "scopes": ["metrics"]}))[1]["key"]
    for path, status in (("/metrics", 200), ("/admin/keys", 403), ("/v1/models", 403)):
        assert await (await router.send("GET", path, x_api_key=key)).head() == status
    assert await (await router.send("GET", "/metrics", x_api_key=router.key)).head() == 403
