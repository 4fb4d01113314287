"""The agent's metrics, over a real socket."""

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script
from tests.node.serving import running

SCRIPT = Script(tokens=5, cache=ScriptedCache(capacity_tokens=100_000))
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "word " * 5000}]}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name.removeprefix("mlx_fleet_node_"), frozenset(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset({"model": "scripted", **labels}.items())


async def test_requests_tokens_and_waits_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, SCRIPT) as agent:
        before = samples((await agent.client.get("/metrics")).text)
        assert before["model_state", of(state="on_disk")] == 1
        usage = (await agent.client.post("/v1/chat/completions", json=CHAT)).json()["usage"]
        # An engine tells what it has stored after the last token.
        await agent.client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1})
        response = await agent.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    after = samples(response.text)
    assert after["requests_total", of(reason="stop")] == 1
    assert after["requests_total", of(reason="length")] == 1
    assert after["tokens_total", of(kind="prompt")] == 2 * usage["prompt_tokens"]
    assert after["tokens_total", of(kind="completion")] == usage["completion_tokens"] + 1 == 6
    assert after["ttft_seconds_count", of()] == after["queue_seconds_count", of()] == 2
    assert after["inter_token_seconds_count", of()] == 1
    assert after["model_state", of(state="ready")] == 1
    assert {("kv_memory_bytes", of()), ("disk_read_seconds_total", of())} <= set(after)
    assert after["cache_events_total", of(kind="stored")] > 0
    assert after["memory_limit_bytes", frozenset()] > after["memory_leased_bytes", frozenset()] > 0


async def test_programs_of_this_machine_need_no_token_but_a_wrong_one_is_wrong(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url) as stranger,
    ):
        assert (await stranger.get("/metrics")).status_code == 200
        wrong = await stranger.get("/metrics", headers={"authorization": "Bearer x"})
        assert wrong.status_code == 401
        rebound = await stranger.get("/metrics", headers={"host": "evil.example"})
        assert rebound.status_code == 421
