"""The control routes of an agent, over a real socket."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest

from node.agent.warm_prompts import parse_command
from node.engine.scripted.script import Script
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.lifecycle import PATH_UNLOAD
from node.protocol.messages import (
    PATH_EVENTS,
    PATH_LOAD,
    PATH_STATUS,
    PATH_WARM,
    PROTOCOL_VERSION,
    Finished,
    ModelState,
    StatusEvent,
    decode_status,
)
from node.request import TextRequest
from node.server import control
from tests.node.serving import closed, running

LOAD = {"model": "scripted"}


async def test_health_and_readiness_are_open_to_everyone(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url) as stranger,
    ):
        assert (await stranger.get("/health")).json() == {"status": "ok"}
        assert (await stranger.get("/")).text == "Ollama is running"
        for path in ("/", "/health"):
            answer = await stranger.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await stranger.get("/ready")).status_code == 200
        agent.app.agent.end_events()
        assert (await stranger.get("/health")).status_code == 200
        refused = await stranger.get("/ready")
        assert refused.status_code == 503
        assert refused.json()["reason"].endswith(".")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", PATH_STATUS), ("GET", PATH_EVENTS), ("POST", PATH_LOAD), ("POST", PATH_UNLOAD)],
)
async def test_control_wants_the_token_and_our_protocol(
    tmp_path: Path, method: str, path: str
) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url) as stranger,
    ):
        for wrong in ("", "Bearer wrong", "Bearer é"):
            headers = [(b"authorization", wrong.encode())]
            response = await stranger.request(method, path, json=LOAD, headers=headers)
            assert response.status_code == 401
            assert response.json()["message"]
        token = {"authorization": f"Bearer {agent.token}"}
        missing = await stranger.request(method, path, json=LOAD, headers=token)
        assert missing.status_code == 426
        other = await stranger.request(
            method, path, json=LOAD, headers={**token, HEADER_PROTOCOL: "2"}
        )
        assert other.status_code == 426
        assert f"speaks version {PROTOCOL_VERSION}" in other.json()["message"]
        assert "version 2" in other.json()["message"]


async def test_the_status_names_the_node_and_its_models(tmp_path: Path) -> None:
    async with running(tmp_path, max_rows=3, memory_limit_bytes=2**33) as agent:
        status = decode_status((await agent.client.get(PATH_STATUS)).content)
    assert status.protocol == PROTOCOL_VERSION
    assert status.engine == "scripted"
    assert status.chip
    assert status.memory_budget_bytes == 2**33
    assert [(model.name, model.state, model.max_rows) for model in status.models] == [
        ("scripted", ModelState.ON_DISK, 3)
    ]


async def test_a_load_that_was_ordered_goes_on_without_its_caller_and_requests_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.engines.swap_policy.ABANDONED_S", 0.0)
    async with running(tmp_path, Script(load_delay_s=0.2)) as agent, agent.events() as events:

        async def until_in(state: ModelState) -> int:
            event = await events.next(
                StatusEvent, lambda each: each.status.models[0].state is state
            )
            return event.status.models[0].generation

        async def order_and_leave() -> None:
            order = asyncio.create_task(agent.client.post(PATH_LOAD, json=LOAD))
            await until_in(ModelState.LOADING)
            order.cancel()
            await asyncio.wait({order})

        await order_and_leave()
        first = await until_in(ModelState.READY)
        await agent.client.post(PATH_UNLOAD, json=LOAD)
        await order_and_leave()
        assert (await agent.chat(max_tokens=1)).status_code == 200
        assert await until_in(ModelState.READY) == first + 1


async def test_models_are_loaded_and_unloaded_on_command(tmp_path: Path) -> None:
    async with running(tmp_path, Script(wedge=True)) as agent:
        loaded = decode_status((await agent.client.post(PATH_LOAD, json=LOAD)).content)
        assert loaded.models[0].state is ModelState.READY
        assert loaded.memory_leased_bytes > 0
        _, writer = await agent.send_raw(
            b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]}'
        )
        await agent.until_active()
        busy = await agent.client.post(PATH_UNLOAD, json=LOAD)
        assert busy.status_code == 409
        assert "still serves" in busy.json()["message"]
        await closed(writer)
        await agent.until_active(0)
        unloaded = decode_status((await agent.client.post(PATH_UNLOAD, json=LOAD)).content)
        assert unloaded.models[0].state is ModelState.ON_DISK
        assert unloaded.memory_leased_bytes == 0


async def test_a_bad_command_is_refused_with_a_message(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_failure="Torn.")) as agent:
        for content, status in (
            (b"", 400),
            (b"{}", 400),
            (b'{"model":5}', 400),
            (b" " * 100_000, 400),
            (b'{"model":"nothing"}', 404),
            (b'{"model":"scripted"}', 503),
        ):
            response = await agent.client.post(PATH_LOAD, content=content)
            assert response.status_code == status
            assert response.json()["message"]
        assert "retry-after" in response.headers
        assert (await agent.client.get("/fleet/nothing")).status_code == 404
        refused = await agent.client.get(PATH_LOAD)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        assert refused.json()["message"] == f"{PATH_LOAD} accepts POST."
        refused = await agent.client.post(PATH_STATUS)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await agent.client.get(PATH_EVENTS, params={"after": "x"})).status_code == 400


@pytest.mark.parametrize(("size", "in_thread"), [(100, False), (5000, True)])
async def test_large_commands_to_warm_are_parsed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []

    def recording(body: bytes) -> tuple[str, list[TextRequest]]:
        threads.append(threading.current_thread())
        return parse_command(body)

    monkeypatch.setattr(control, "THREAD_BODY_BYTES", 1000)
    monkeypatch.setattr(control, "parse_command", recording)
    async with running(tmp_path) as agent:
        body = {**LOAD, "requests": [{"prompt": "x" * size}]}
        assert (await agent.client.post(PATH_WARM, json=body)).status_code == 200
    assert [thread is not threading.current_thread() for thread in threads] == [in_thread]


async def test_events_begin_with_a_snapshot_and_replay_what_was_missed(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        async with agent.events() as events:
            first = await events.next(StatusEvent)
            instance = first.status.instance_id
            await agent.chat(max_tokens=1)
            assert (await events.next(Finished)).seq == 1
        for _ in range(3):
            await agent.chat(max_tokens=1)
        async with agent.events(instance, after=1) as events:
            assert isinstance(await events.next(StatusEvent), StatusEvent)
            assert [(await events.next(Finished)).seq for _ in range(3)] == [2, 3, 4]
            await agent.chat(max_tokens=1)
            assert (await events.next(Finished)).seq == 5
        async with agent.events("another", after=4) as events:
            assert (await events.next(Finished)).seq == 1
