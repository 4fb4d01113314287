"""Report 39: nothing that a caller shows the router reaches a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.rig import Fleet
from tests.router.conftest import RawCaller, Request, RunningRouter, StartNode

SECRET = "caller-secret"
SHOWN = {
    "x-api-key": SECRET,
    "cookie": f"session={SECRET}",
    "proxy-authorization": f"Basic {SECRET}",
    "x-auth-token": SECRET,
    "x-goog-api-key": SECRET,
    "api-key": SECRET,
    "anthropic-beta": SECRET,
    "openai-organization": SECRET,
    "user-agent": SECRET,
    "referer": SECRET,
    "x-forwarded-for": SECRET,
    "x-session-id": SECRET,
    "x-own-header": SECRET,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages": {"max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
    "/v1/completions": {"prompt": "hello"},
}


def head(path: str, key: str, size: int) -> bytes:
    lines = {"host": "router", "authorization": f"Bearer {key}", **SHOWN}
    lines["content-length"] = str(size)
    shown = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    # Some clients show their key in the query.
    return f"POST {path}?key={SECRET} HTTP/1.1\r\n{shown}\r\n".encode()


async def send(port: int, path: str, key: str, model: str) -> int:
    body = json.dumps({"model": model, "max_tokens": 2, **BODIES[path]}).encode()
    if path == "/v1/responses":
        body = json.dumps({"model": model, "max_output_tokens": 2, **BODIES[path]}).encode()
    caller = await RawCaller.connect(port)
    caller.writer.write(head(path, key, len(body)) + body)
    await caller.body()
    caller.leave()
    return caller.status


@pytest.mark.parametrize("path", BODIES)
async def test_fault_39_no_agent_sees_what_a_caller_shows_the_router(
    shared: Fleet, path: str
) -> None:
    shared.forget("swift")
    assert await send(shared.port, path, shared.front.key, "swift") == 200
    (record,) = shared.records("swift")
    sent = json.dumps(record["headers"])
    assert SECRET not in sent and shared.front.key not in sent
    names = {name for name, _ in record["headers"]}
    assert names & set(SHOWN) == set()
    # Its own credential is the only one there.
    credential = dict(record["headers"])["authorization"]
    assert credential == f"Bearer {shared.agents['swift'].token}"


@pytest.mark.parametrize("path", BODIES)
async def test_a_foreign_server_does_not_see_it_either(
    router: RunningRouter, start_node: StartNode, path: str
) -> None:
    async def script(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(b'{"data":[{"id":"m"}]}')
        else:
            await request.answer(b"{}")

    node = await start_node(script)
    await router.add(node, kind="openai")
    assert await send(router.port, path, router.key, "m") == 200
    received = [each for each in node.requests if each.target == path]
    sent = json.dumps([[each.target, each.headers] for each in received])
    assert len(received) == 1 and SECRET not in sent and router.key not in sent
    assert not {name.lower() for name, _ in received[0].headers} & (set(SHOWN) - {"user-agent"})
    assert received[0].header("authorization") == "Bearer secret", "its own credential is not there"
