"""Responses of a running agent whose headers instruct clients not to retry the request."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from node.engine.scripted.script import Script, ScriptedModel
from tests.node.serving import RunningAgent, running

TURN: dict[str, Any] = {"role": "user", "content": "x" * 40}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [TURN]},
    "/v1/completions": {"prompt": "x" * 40},
    "/v1/messages": {"messages": [TURN], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [TURN]},
    "/v1/responses": {"input": "x" * 40},
}
SHORT = ScriptedModel("short", context_tokens=8)
LONG = ScriptedModel("long")


async def ask(
    agent: RunningAgent, path: str, model: str = "long", key: str = "", **fields: Any
) -> tuple[int, str | None]:
    """Returns the status, and whether to retry."""
    headers = {"authorization": f"Bearer {key or agent.token}"}
    body = {"model": model, **BODIES[path], **fields}
    answer = await agent.client.post(path, json=body, headers=headers)
    return answer.status_code, answer.headers.get("x-should-retry")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_that_a_retry_cannot_mend_says_so_in_every_dialect(
    tmp_path: Path, path: str, stream: bool
) -> None:
    counts = path.endswith("count_tokens")
    fields: dict[str, Any] = {} if counts else {"stream": stream}
    async with running(tmp_path, Script(models=(SHORT, LONG), tokens=1)) as agent:
        assert await ask(agent, path, key="wrong", **fields) == (401, "false")
        assert await ask(agent, path, "nothing", **fields) == (404, "false")
        assert await ask(agent, path, **fields | {"model": 7}) == (400, "false")
        assert counts or await ask(agent, path, "short", **fields) == (400, "false")
        assert await ask(agent, path, **fields) == (200, None)


async def test_so_do_wrong_paths_and_methods(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        answers = [
            await agent.client.post("/v1/messages/nothing"),
            await agent.client.get("/v1/messages"),
            await agent.client.post("/chat/completions"),
            await agent.client.get("/fleet/status", headers={"authorization": "Bearer wrong"}),
        ]
    assert [status_and_retry(each) for each in answers] == [
        (404, "false"),
        (405, "false"),
        (404, "false"),
        (401, "false"),
    ]
    assert answers[-1].headers["www-authenticate"] == "Bearer"


async def test_what_may_go_better_later_does_not(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_failure="It fails.")) as agent:
        body = {"model": "scripted", **BODIES["/v1/messages"]}
        assert status_and_retry(await agent.client.post("/v1/messages", json=body)) == (503, None)


def status_and_retry(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.headers.get("x-should-retry")
