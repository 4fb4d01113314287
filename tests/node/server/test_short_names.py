"""Short names of models at an agent: a client's stand for a model on every path, a router's do
not."""

from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script, ScriptedModel
from tests.node.serving import running

QWEN = "mlx-community/Qwen3-4B-4bit"
MESSAGES = [{"role": "user", "content": "hi"}]
ONE = Script(text="one", models=(ScriptedModel(QWEN), ScriptedModel("org/other")))
TWO = Script(models=(ScriptedModel(QWEN), ScriptedModel("mlx-community/Qwen3-4B-8bit")))

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_short_name_stands_for_its_model_on_every_path(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, ONE) as agent:
        response = await agent.client.post(path, json={**BODIES[path], "model": "qwen3-4b"})
        assert response.status_code == 200, response.text
        assert response.headers["x-fleet-model"] == QWEN


async def test_a_model_is_shown_and_loaded_by_a_short_name(tmp_path: Path) -> None:
    async with running(tmp_path, ONE) as agent:
        shown = await agent.client.get("/v1/models/qwen3-4b")
        assert shown.json()["id"] == QWEN
        ollama = await agent.client.post("/api/show", json={"model": "qwen3:4b"})
        assert ollama.json()["model_info"]["general.basename"] == QWEN
        loaded = await agent.client.post("/api/generate", json={"model": "qwen3:4b"})
        assert loaded.headers["x-fleet-model"] == QWEN


async def test_a_short_name_of_several_is_an_error_that_lists_them(tmp_path: Path) -> None:
    async with running(tmp_path, TWO) as agent:
        body = {**BODIES["/v1/chat/completions"], "model": "qwen3-4b"}
        refused = await agent.client.post("/v1/chat/completions", json=body)
        whole = await agent.client.post("/v1/chat/completions", json={**body, "model": QWEN})
    assert (refused.status_code, whole.status_code) == (404, 200)
    error = refused.json()["error"]
    assert error["code"] == "model_not_found"
    assert f"fits several models: {QWEN}, mlx-community/Qwen3-4B-8bit" in error["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_router_s_names_are_whole(tmp_path: Path, path: str) -> None:
    """A model that the router knows and that has gone must not become another one."""
    async with running(tmp_path, ONE) as agent:
        headers = {"x-fleet-origin": "router/key"}
        body = {**BODIES[path], "model": "qwen3-4b"}
        response = await agent.client.post(path, json=body, headers=headers)
        assert response.status_code == 404
