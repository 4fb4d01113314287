"""Every request of a client leaves one line with `--log-requests`."""

from __future__ import annotations

import asyncio
import logging

import pytest

from serving.logs.logs import REQUESTS
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_requests import Stalled, begun
from tests.router.api.test_v1 import a_node
from tests.router.conftest import WAIT_S, AddNode, RunningRouter, StartNode
from tests.router.dispatch.test_relay import HELLO, STREAM

SECRET = "do not log me"


@pytest.fixture
def lines(
    router: RunningRouter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, REQUESTS)
    monkeypatch.setattr(logging.getLogger(REQUESTS), "propagate", True)
    router.core.ledger.request_log.is_on = True
    return caplog


def logged(router: RunningRouter, lines: pytest.LogCaptureFixture) -> list[str]:
    """The lines so far, without their times."""
    router.core.ledger.close_all()
    found = [each for each in lines.records if each.name == REQUESTS]
    return [each.getMessage().partition(", ")[0] for each in found]


async def test_refused_requests_are_logged_with_key_model_and_status(
    router: RunningRouter, start_node: StartNode, lines: pytest.LogCaptureFixture
) -> None:
    await a_node(router, start_node)
    _, made = await call(router, "POST", "/keys", {"name": "laptop"})
    limits = {"limits": {"requests_per_minute": 1}}
    await call(router, "PATCH", "/keys/laptop", limits)
    key = f"Bearer {made['key']}"
    prompt = [{"role": "user", "content": SECRET}]
    for body, authorization in (
        ({"model": "m", "messages": prompt}, key),
        ({"model": "m", "messages": prompt}, key),
        ({"model": "nothing", "messages": prompt}, key),
        (b"{" + SECRET.encode(), key),
        ({"model": "m", "messages": prompt}, f"Bearer mlxf-{SECRET}"),
    ):
        caller = await router.post(body, authorization=authorization)
        await caller.head()
        await caller.body()
    assert logged(router, lines) == [
        "chat/completions m for laptop: 429 requests_per_minute",
        "chat/completions nothing for laptop: 404 model_not_found",
        "chat/completions for laptop: 400 invalid_value",
        "chat/completions without a valid key: 401 invalid_api_key",
        "chat/completions m on a for laptop: 200 served",
    ]
    assert SECRET not in lines.text and made["key"] not in lines.text


async def test_requests_of_ollama_s_dialect_are_logged_too(
    router: RunningRouter, start_node: StartNode, lines: pytest.LogCaptureFixture
) -> None:
    await a_node(router, start_node)
    wrong = await router.post({"model": "m"}, "/api/show", authorization="Bearer x")
    assert await wrong.head() == 401
    bad = await router.post(b"[", "/api/chat")
    assert await bad.head() == 400
    assert logged(router, lines) == [
        "/api/show without a valid key: 401 invalid_api_key",
        "/api/chat for first: 400 invalid_value",
    ]


async def test_a_client_that_leaves_within_its_body_is_logged(
    router: RunningRouter, lines: pytest.LogCaptureFixture
) -> None:
    caller = await router.post(b'{"model"', content_length="100")
    async with asyncio.timeout(WAIT_S):
        while not router.state.tasks:
            await asyncio.sleep(0)
    caller.leave()
    await router.idle()
    assert logged(router, lines) == ["chat/completions for first: disconnected"]
    text = router.core.metrics.text().decode()
    assert 'aborted_requests_total{by="disconnect",model="",phase="body"} 1.0' in text


async def test_a_client_that_leaves_a_stream_is_logged_and_counted(
    router: RunningRouter, add_agent: AddNode, lines: pytest.LogCaptureFixture
) -> None:
    script = Stalled(HELLO)
    await add_agent(router, "a", script)
    caller = await begun(router, script, STREAM)
    await caller.head()
    caller.leave()
    await asyncio.wait_for(script.gone.wait(), WAIT_S)
    await router.idle()
    assert logged(router, lines) == ["chat/completions m on a for first: 200 cancelled"]
    text = router.core.metrics.text().decode()
    assert 'aborted_requests_total{by="disconnect",model="m",phase="stream"} 1.0' in text
    assert "refused_requests_total{" not in text
