"""Models are added to an agent's disk and removed from it, over real sockets."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from node.models.model_files import PARTIAL_MARKER
from node.protocol.headers import HEADER_TICKET
from node.protocol.lifecycle import (
    PATH_FILES,
    PATH_PULL,
    PATH_PULL_CANCEL,
    PATH_REMOVE,
    PATH_SHARE,
    Peer,
    PullCommand,
    Share,
)
from node.protocol.messages import ModelState, ModelStatus, StatusEvent, decode_status
from tests.node.model_folders import CONFIG, make_model, safetensors
from tests.node.serving import WAIT_S, RunningAgent, running
from tests.serving.caffeinate import TERMINATED, begun, install

WEIGHTS = bytes(range(256)) * 2000


def text_agent(home: Path) -> Any:
    """An agent with a real store; no model is loaded."""
    return running(home, engine="text", script=None)


async def post(agent: RunningAgent, path: str, command: object) -> httpx.Response:
    return await agent.client.post(path, content=msgspec.json.encode(command))


async def shared(agent: RunningAgent, model: str = "org/tiny") -> Share:
    answer = await post(agent, PATH_SHARE, {"model": model})
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Share)


async def until(agent: RunningAgent, state: ModelState, reason: str = "") -> ModelStatus:
    async with agent.events() as events:
        event = await events.next(
            StatusEvent,
            lambda event: any(
                model.state is state and reason in (model.reason or "")
                for model in event.status.models
            ),
        )
    return event.status.models[0]


async def test_a_model_is_copied_from_one_agent_to_another(tmp_path: Path) -> None:
    make_model(tmp_path / "a" / "models" / "org--tiny", WEIGHTS)
    async with text_agent(tmp_path / "a") as a, text_agent(tmp_path / "b") as b:
        peer = Peer(f"http://127.0.0.1:{a.port}", await shared(a))
        begun = await post(b, PATH_PULL, PullCommand("org/tiny", peer=peer))
        assert begun.status_code == 202
        status = decode_status(begun.content)
        assert [(m.name, m.state) for m in status.models] == [("org/tiny", ModelState.PULLING)]
        assert status.disk_free_bytes > 0
        arrived = await until(b, ModelState.ON_DISK)
    copied = tmp_path / "b" / "models" / "org--tiny"
    assert (copied / "model.safetensors").read_bytes() == safetensors(WEIGHTS)
    assert not (copied / PARTIAL_MARKER).exists()
    assert arrived.disk_bytes >= len(WEIGHTS) + len(CONFIG)


async def test_files_want_a_ticket_and_are_given_from_any_byte(tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "org--tiny", WEIGHTS)
    (tmp_path / "secret").write_text("secret")
    whole = safetensors(WEIGHTS)
    async with (
        text_agent(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url, timeout=WAIT_S) as peer,
    ):
        share = await shared(agent)

        async def get(path: str, ticket: str = share.ticket, **headers: str) -> httpx.Response:
            query = {"model": "org/tiny", "path": path}
            return await peer.get(
                PATH_FILES, params=query, headers={HEADER_TICKET: ticket, **headers}
            )

        assert (await get("model.safetensors")).content == whole
        part = await get("model.safetensors", range="bytes=1000-")
        assert (part.status_code, part.content) == (206, whole[1000:])
        assert part.headers["content-range"] == f"bytes 1000-{len(whole) - 1}/{len(whole)}"
        for ticket in ("", "wrong", agent.token):
            assert (await get("config.json", ticket)).status_code == 403
        for path in ("../../secret", str(tmp_path / "secret"), "mlx-fleet.json", ""):
            assert (await get(path)).status_code == 404
        assert (await peer.get(PATH_FILES)).status_code == 400


async def test_a_copy_for_a_peer_keeps_the_machine_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caffeinate = install(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr("serving.awake.RELEASE_S", 0.0)
    make_model(tmp_path / "models" / "org--tiny", WEIGHTS)
    async with text_agent(tmp_path) as agent:
        ticket = (await shared(agent)).ticket
        query = {"model": "org/tiny", "path": "model.safetensors"}
        await agent.client.get(PATH_FILES, params=query, headers={HEADER_TICKET: ticket})
        await caffeinate.until(begun(), TERMINATED)


async def test_a_router_s_commands_for_the_disk_need_the_token(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url) as stranger,
    ):
        for path in (PATH_PULL, PATH_PULL_CANCEL, PATH_REMOVE, PATH_SHARE):
            assert (await stranger.post(path, json={"model": "scripted"})).status_code == 401


async def test_a_pull_that_stops_reports_why_and_is_cancelled(tmp_path: Path) -> None:
    make_model(tmp_path / "a" / "models" / "org--tiny", WEIGHTS)
    async with text_agent(tmp_path / "b") as b:
        async with text_agent(tmp_path / "a") as a:
            share = await shared(a)
            url = f"http://127.0.0.1:{a.port}"
        await post(b, PATH_PULL, PullCommand("org/tiny", peer=Peer(url, share)))
        stuck = await until(b, ModelState.PULLING, "stopped delivering")
        assert (stuck.name, stuck.state) == ("org/tiny", ModelState.PULLING)
        cancelled = decode_status((await post(b, PATH_PULL_CANCEL, {"model": "org/tiny"})).content)
        assert cancelled.models == ()
        assert not (tmp_path / "b" / "models" / "org--tiny").exists()
        again = await post(b, PATH_PULL_CANCEL, {"model": "org/tiny"})
        assert (again.status_code, "no pull" in again.json()["message"]) == (404, True)


async def test_a_model_is_removed_and_one_in_memory_is_not(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "models" / "org--tiny")
    async with text_agent(tmp_path) as agent:
        assert [model.name for model in (await agent.status()).models] == ["org/tiny"]
        removed = await post(agent, PATH_REMOVE, {"model": "org/tiny"})
        assert decode_status(removed.content).models == ()
        assert not folder.exists()
        missing = await post(agent, PATH_REMOVE, {"model": "org/tiny"})
        assert missing.status_code == 404
    async with running(tmp_path / "scripted") as agent:
        assert (await agent.chat()).status_code == 200
        busy = await post(agent, PATH_REMOVE, {"model": "scripted"})
        assert (busy.status_code, "unload it first" in busy.json()["message"]) == (409, True)


async def test_what_an_interrupted_pull_left_is_removed(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "models" / "org--tiny")
    (folder / PARTIAL_MARKER).write_text("peer:")
    async with text_agent(tmp_path) as agent:
        (status,) = (await agent.status()).models
        assert (status.state, "interrupted" in (status.reason or "")) == (ModelState.PULLING, True)
        removed = await post(agent, PATH_REMOVE, {"model": "org/tiny"})
        assert decode_status(removed.content).models == ()
    assert not folder.exists()


async def test_a_model_that_is_served_from_elsewhere_is_not_pulled(tmp_path: Path) -> None:
    outside = make_model(tmp_path / "outside")
    async with running(tmp_path / "home", engine="text", script=None, models=(outside,)) as agent:
        answer = await post(agent, PATH_PULL, PullCommand("outside", "org/outside"))
        assert (answer.status_code, "outside the agent's" in answer.json()["message"]) == (
            400,
            True,
        )
        # It can be copied from here all the same, and its folder is only read.
        assert len((await shared(agent, "outside")).files) == 2
    assert sorted(file.name for file in outside.iterdir()) == ["config.json", "model.safetensors"]


async def test_bad_commands_are_refused_with_a_message(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        for path, command, status in (
            (PATH_PULL, {"model": "../x", "repo_id": "org/x"}, 400),
            (PATH_PULL, {"model": "org/x"}, 400),
            (PATH_PULL, {}, 400),
            (PATH_SHARE, {"model": "none"}, 404),
            (PATH_SHARE, {"model": "scripted"}, 400),
            (PATH_REMOVE, {"model": "../x"}, 400),
        ):
            answer = await post(agent, path, command)
            assert (answer.status_code, bool(answer.json()["message"])) == (status, True)
