"""Limits of keys and teams on real sockets."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from node.protocol.headers import HEADER_ORIGIN, HEADER_PROOF, HEADER_REQUEST_ID
from node.protocol.messages import Event, FinishReason, StatusEvent
from registry.records import UsageRecord
from router.auth import key_subject
from router.limits.account import Account
from router.quotas import Limits
from tests.registry.rows import usage_rows
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_v1 import a_node, refused
from tests.router.conftest import (
    CHAT,
    FINISHED,
    WAIT_S,
    RawCaller,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    model_status,
    node_status,
    running_router,
)

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
MESSAGES = {**HELLO, "max_tokens": 100}
FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


async def a_key(router: RunningRouter, name: str = "ci", **fields: Any) -> str:
    status, row = await call(router, "POST", "/keys", {"name": name, **fields})
    assert status == 201, row
    return str(row["key"])


async def ask(router: RunningRouter, key: str, path: str = CHAT, **fields: Any) -> RawCaller:
    return await router.post(HELLO | fields, path, authorization=f"Bearer {key}")


def account(router: RunningRouter, key: str) -> Account:
    subject = key_subject(router.caller(key).key_id)
    return router.core.limiter.account(subject, Limits())[0]


async def settled(router: RunningRouter, key: str) -> int:
    """The key's tokens of this day, once nothing is reserved."""
    async with asyncio.timeout(WAIT_S):
        while account(router, key).reserved_tokens:
            await asyncio.sleep(0)
    return account(router, key).day_tokens


class Reporting:
    """A node that reports usage of each request, as node agents do."""

    def __init__(self) -> None:
        self.node: ScriptedNode | None = None
        self.seq = 0

    async def start(self, router: RunningRouter, start_node: StartNode) -> ScriptedNode:
        first = (StatusEvent(node_status(model_status("m"))),)
        self.node = await start_node(self.serve, first_events=first)
        await router.add(self.node)
        return self.node

    async def serve(self, request: Request) -> None:
        if b'"stream": true' not in request.body:
            await request.answer(b"{}")
            await self.report(request, 20, 11)
            return
        await request.begin_stream()
        await request.chunk(FIRST)
        await request.wait_gone()
        await self.report(request, 20, 3, FinishReason.CANCELLED)

    async def report(
        self, request: Request, prompt: int, made: int, reason: FinishReason = FinishReason.STOP
    ) -> None:
        assert self.node is not None
        self.seq += 1
        await self.node.tell(usage(request, self.seq, prompt, made, reason))


def usage(request: Request, seq: int, prompt: int, made: int, reason: FinishReason) -> Event:
    marks = {name: request.header(name) or "" for name in (HEADER_ORIGIN, HEADER_PROOF)}
    return replace(
        FINISHED,
        seq=seq,
        request_id=request.header(HEADER_REQUEST_ID) or "",
        origin=marks[HEADER_ORIGIN],
        proof=marks[HEADER_PROOF],
        prompt_tokens=prompt,
        completion_tokens=made,
        reason=reason,
        finished_unix_s=time.time(),
    )


async def test_a_second_request_within_the_minute_is_refused(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    key = await a_key(router, limits={"requests_per_minute": 1})
    caller = await ask(router, key)
    assert await caller.head() == 200
    assert caller.headers["x-ratelimit-limit-requests"] == "1"
    assert caller.headers["x-ratelimit-remaining-requests"] == "0"
    assert caller.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "x-ratelimit-limit-tokens" not in caller.headers
    await caller.body()
    caller = await ask(router, key)
    error = await refused(caller, 429, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert error["message"].startswith("This API key may make 1 request a minute; try again in ")
    assert 0 < int(caller.headers["retry-after"]) <= 60
    assert caller.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-should-retry" not in caller.headers


async def test_a_key_without_limits_gets_no_headers_about_them(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    caller = await ask(router, await a_key(router))
    assert await caller.head() == 200
    assert [name for name in caller.headers if "ratelimit" in name] == []


async def test_a_limit_is_shown_and_refused_in_anthropic_s_dialect(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    key = await a_key(router, limits={"requests_per_minute": 1, "tokens_per_minute": 10_000})
    caller = await ask(router, key, "/v1/messages", max_tokens=100)
    assert await caller.head() == 200
    assert caller.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert caller.headers["anthropic-ratelimit-tokens-limit"] == "10000"
    assert 9_000 < int(caller.headers["anthropic-ratelimit-tokens-remaining"]) < 9_900
    assert caller.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    await caller.body()
    caller = await ask(router, key, "/v1/messages", max_tokens=100)
    assert await caller.head() == 429
    assert b'"rate_limit_error"' in await caller.body()
    assert "retry-after" in caller.headers


async def test_tokens_settle_from_what_the_node_reports(
    router: RunningRouter, start_node: StartNode
) -> None:
    await Reporting().start(router, start_node)
    key = await a_key(router, limits={"tokens_per_day": 200})
    caller = await ask(router, key, max_tokens=100)
    await caller.body()
    assert caller.headers["x-ratelimit-limit-tokens"] == "200"
    assert int(caller.headers["x-ratelimit-remaining-tokens"]) < 100
    assert await settled(router, key) == 31
    _, row = await call(router, "GET", "/keys/ci")
    assert row["use"]["tokens_today"] == 31 and row["use"]["tokens_left"] == 169
    error = await refused(await ask(router, key, max_tokens=180), 429, "rate_limit_exceeded")
    assert "31 are used or reserved" in error["message"]


async def test_an_aborted_stream_is_charged_for_what_was_made(
    router: RunningRouter, start_node: StartNode
) -> None:
    await Reporting().start(router, start_node)
    key = await a_key(router, limits={"tokens_per_day": 10_000, "concurrent_requests": 1})
    caller = await ask(router, key, stream=True)
    await caller.head()
    assert b"Hi" in await caller.chunk()
    error = await refused(await ask(router, key), 429, "rate_limit_exceeded")
    assert "1 request open at once" in error["message"]
    caller.leave()
    assert await settled(router, key) == 23
    assert account(router, key).open_requests == 0
    assert await (await ask(router, key)).head() == 200


async def test_a_request_that_no_node_took_is_given_back(router: RunningRouter) -> None:
    key = await a_key(router, limits={"requests_per_minute": 1, "tokens_per_day": 5000})
    for _ in range(3):
        await refused(await ask(router, key), 404, "model_not_found")
    assert account(router, key).reserved_tokens == 0


async def test_a_request_whose_node_is_lost_is_given_back(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def dying(request: Request) -> None:
        request.drop()

    node = await start_node(dying, first_events=(StatusEvent(node_status(model_status("m"))),))
    await router.add(node)
    key = await a_key(router, limits={"tokens_per_day": 5000})
    await refused(await ask(router, key), 502, "node_failed")
    router.core.ledger.close_all()
    assert (account(router, key).reserved_tokens, account(router, key).day_tokens) == (0, 0)


async def test_a_team_s_keys_share_its_limits(router: RunningRouter, start_node: StartNode) -> None:
    await a_node(router, start_node)
    team = {"name": "lab", "limits": {"requests_per_minute": 2}}
    assert (await call(router, "POST", "/teams", team))[0] == 201
    ann, bob = [await a_key(router, name, team="lab") for name in ("ann", "bob")]
    assert [await (await ask(router, key)).head() for key in (ann, bob)] == [200, 200]
    error = await refused(await ask(router, ann), 429, "rate_limit_exceeded")
    assert error["message"].startswith("The team lab of this API key may make 2 requests")
    await call(router, "PATCH", "/teams/lab", {"limits": {"requests_per_minute": None}})
    assert await (await ask(router, bob)).head() == 200
    assert "x-ratelimit-limit-requests" not in (await ask(router, bob)).headers


async def test_tokens_of_the_day_outlive_a_restart(tmp_path: Path, start_node: StartNode) -> None:
    async with running_router(tmp_path) as router:
        await Reporting().start(router, start_node)
        await call(router, "POST", "/teams", {"name": "lab", "limits": {"tokens_per_day": 90}})
        key = await a_key(router, limits={"tokens_per_day": 100}, team="lab")
        await (await ask(router, key, max_tokens=30)).body()
        assert await settled(router, key) == 31
    async with running_router(tmp_path) as router:
        assert account(router, key).day_tokens == 31
        _, (team,) = await call(router, "GET", "/teams")
        assert (team["use"]["tokens_today"], team["keys"]) == (31, ["ci"])


async def test_a_limit_that_is_set_later_counts_the_day_s_tokens(
    router: RunningRouter, start_node: StartNode
) -> None:
    reporting = Reporting()
    await reporting.start(router, start_node)
    key = await a_key(router)
    await (await ask(router, key)).body()
    await written(router, 1)
    limits = {"limits": {"tokens_per_day": 40}}
    status, row = await call(router, "PATCH", "/keys/ci", limits)
    assert (status, row["use"]["tokens_today"]) == (200, 31)
    error = await refused(await ask(router, key, max_tokens=20), 429, "rate_limit_exceeded")
    assert "31 are used" in error["message"]


async def test_a_key_takes_its_tokens_of_the_day_into_another_team(
    router: RunningRouter, start_node: StartNode
) -> None:
    await Reporting().start(router, start_node)
    for name in ("lab", "ops"):
        await call(router, "POST", "/teams", {"name": name, "limits": {"tokens_per_day": 500}})
    key = await a_key(router, team="lab", limits={"tokens_per_day": 900})
    await (await ask(router, key, max_tokens=20)).body()
    assert await settled(router, key) == 31
    await written(router, 1)
    assert (await call(router, "PATCH", "/keys/ci", {"team": "ops"}))[0] == 200
    _, teams = await call(router, "GET", "/teams")
    used = {team["name"]: team["use"]["tokens_today"] for team in teams}
    assert used == {"lab": 0, "ops": 31}
    await (await ask(router, key, max_tokens=20)).body()
    await settled(router, key)
    _, teams = await call(router, "GET", "/teams")
    assert {team["name"]: team["use"]["tokens_today"] for team in teams} == {"lab": 0, "ops": 62}


async def written(router: RunningRouter, count: int) -> None:
    """Waits until the usage of so many requests is in the registry."""
    rows: list[UsageRecord] = []
    async with asyncio.timeout(WAIT_S):
        while len(rows) < count:
            await asyncio.sleep(0.05)
            async with router.core.registry.read() as session:
                rows = await usage_rows(session)


async def test_an_aborted_stream_of_a_third_party_server_is_charged_by_its_events(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def endless(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(b'{"data":[{"id":"m"}]}')
            return
        await request.begin_stream()
        for _ in range(3):
            await request.chunk(FIRST)
        await request.wait_gone()

    await router.add(await start_node(endless), "ollama", "openai")
    key = await a_key(router, limits={"tokens_per_day": 10_000})
    caller = await ask(router, key, stream=True)
    await caller.head()
    seen = b""
    while seen.count(b"Hi") < 3:
        seen += await caller.chunk()
    prompt = account(router, key).reserved_tokens - 4096
    caller.leave()
    assert await settled(router, key) == prompt + 3
