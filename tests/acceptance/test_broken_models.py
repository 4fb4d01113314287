"""A model whose files are damaged, as clients see it that request it."""

import asyncio
from pathlib import Path

import httpx
from typer.testing import CliRunner

from router.cli.main import app
from tests.acceptance.test_pulls import TEXT
from tests.node.model_folders import make_model
from tests.node.serving import running
from tests.router.commands.running import running_router

REASON = "'org/tiny' cannot be served on a: config.json is not valid JSON."


async def test_a_damaged_model_is_shown_refused_with_its_reason_and_deleted(
    tmp_path: Path,
) -> None:
    folder = make_model(tmp_path / "a" / "models" / "org--tiny")
    (folder / "config.json").write_text("{")
    body = {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}
    with running_router(tmp_path / "router") as place:
        environ = {"MLX_FLEET_ROUTER_URL": place.url, "MLX_FLEET_ROUTER_HOME": str(place.home)}

        async def run(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environ)
            assert done.exit_code == code, done.output
            return str(done.output)

        async with running(tmp_path / "a", **TEXT) as a:
            url = f"http://127.0.0.1:{a.port}"
            await run("add-node", url, "--name", "a", "--token", a.token)
            shown = await run("models") + await run("nodes")
            assert "a: broken" in shown and "The files of org/tiny are damaged" in shown
            assert "org/tiny on a: config.json is not valid JSON." in shown
            assert REASON in await run("load", "org/tiny", code=1)
            assert REASON in await run("load", "org/tiny", "--node", "a", code=1)
            key = {"authorization": f"Bearer {place.inference_key()}"}
            async with httpx.AsyncClient(timeout=20) as client:
                refused = await client.post(
                    f"{place.url}/v1/chat/completions", json=body, headers=key
                )
            error = refused.json()["error"]
            assert (error["code"], error["message"]) == ("model_broken", REASON)
            at_agent = await a.client.post("/v1/chat/completions", json=body)
            for answer in (refused, at_agent):
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, None)
            assert at_agent.json()["error"]["code"] == "model_broken"
            (broken,) = (await a.client.get("/v1/node/status")).json()["broken"]
            assert broken["name"] == "org/tiny"
            assert "deleted from a" in await run("models", "rm", "org/tiny", "--node", "a", "--yes")
            assert not folder.exists()
            assert "No node of the fleet has a model" in await run("models")
