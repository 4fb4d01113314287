"""Models that are copied from node to node, and the death of who pulls or gives."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from typer.testing import CliRunner

from node.protocol.lifecycle import PATH_PULL, PATH_SHARE, Peer, PullCommand, Share
from router.cli.main import app
from tests.acceptance.processes import Agent, agent
from tests.node.model_folders import CONFIG, make_model, safetensors, share
from tests.node.models.test_peer import PlayedPeer, playing
from tests.node.serving import RunningAgent, running
from tests.router.commands.running import running_router

WAIT_S = 20.0
FILES = {"config.json": CONFIG, "model.safetensors": safetensors(bytes(range(256)) * 48_000)}
TEXT: dict[str, Any] = {"engine": "text", "script": None}


def until(what: Callable[[], Any]) -> Any:
    """Returns the result of `what` once that is true."""
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


async def order(to: RunningAgent, command: PullCommand) -> None:
    answer = await to.client.post(PATH_PULL, content=msgspec.json.encode(command))
    assert answer.status_code == 202, answer.text


async def until_reported(node: RunningAgent, what: Callable[[Any], object]) -> Any:
    """Returns the node's status of its only model once `what` is true of it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            models = (await node.status()).models
            if models and what(models[0]):
                return models[0]
            await asyncio.sleep(0.02)


async def test_an_agent_killed_in_a_pull_resumes_at_the_byte_when_the_pull_is_commanded_again(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "node" / "models" / "org--tiny" / "model.safetensors"
    go_on = threading.Event()
    with playing(PlayedPeer(files=dict(FILES), cut_at=11_000_000, cut=go_on.wait)) as peer:
        command = PullCommand("org/tiny", peer=Peer(peer.url, share(FILES)))
        with agent(tmp_path, None, "--engine", "text") as b:
            body = msgspec.json.encode(command)
            httpx.post(b.url + PATH_PULL, content=body, headers=b.headers).raise_for_status()
            until(lambda: weights.exists() and weights.stat().st_size > 2_000_000)
            children = psutil.Process(b.running.pid).children()
            (worker,) = [each for each in children if "node.models.pull_process" in each.cmdline()]
            b.running.kill()
            until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
        go_on.set()
        here = weights.stat().st_size
        assert 2_000_000 < here <= 11_000_000
        peer.cut_at = None
        peer.requested.clear()
        async with running(tmp_path / "node", **TEXT) as again:
            (reported,) = (await again.status()).models
            assert "interrupted" in (reported.reason or "")
            await order(again, command)
            await until_reported(again, lambda model: model.state == "on_disk")
    assert [(path, given) for _, path, given in peer.requested] == [
        ("model.safetensors", f"bytes={here}-")
    ]
    assert weights.read_bytes() == FILES["model.safetensors"]


async def test_a_source_killed_in_a_copy_is_reported_and_the_copy_is_resumed_later(
    tmp_path: Path,
) -> None:
    # More than the sockets between the two can hold.
    weights = bytes(range(256)) * 4096 * 40
    make_model(tmp_path / "a" / "node" / "models" / "org--tiny", weights)
    target = tmp_path / "b" / "models" / "org--tiny" / "model.safetensors"
    async with running(tmp_path / "b", **TEXT) as b:
        with agent(tmp_path / "a", None, "--engine", "text") as a:
            await order(b, PullCommand("org/tiny", peer=Peer(a.url, shared(a))))
            await asyncio.to_thread(until, target.exists)
            a.running.kill()
        stuck = await until_reported(b, lambda model: model.reason)
        assert stuck.state == "pulling"
        assert "resumes the pull" in stuck.reason
        here = target.stat().st_size
        assert here < len(safetensors(weights))
        async with running(tmp_path / "a" / "node", **TEXT) as a_again:
            answer = await a_again.client.post(PATH_SHARE, json={"model": "org/tiny"})
            given = msgspec.json.decode(answer.content, type=Share)
            url = f"http://127.0.0.1:{a_again.port}"
            await order(b, PullCommand("org/tiny", peer=Peer(url, given)))
            await until_reported(b, lambda model: model.state == "on_disk")
    assert target.read_bytes() == safetensors(weights)


def shared(node: Agent) -> Share:
    answer = httpx.post(node.url + PATH_SHARE, json={"model": "org/tiny"}, headers=node.headers)
    return msgspec.json.decode(answer.raise_for_status().content, type=Share)


async def test_a_model_is_pulled_shown_and_deleted_through_the_router(tmp_path: Path) -> None:
    make_model(tmp_path / "a" / "models" / "org--tiny")
    with running_router(tmp_path / "router") as place:
        environ = {"MLX_FLEET_ROUTER_URL": place.url, "MLX_FLEET_ROUTER_HOME": str(place.home)}

        async def must(*arguments: str) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environ)
            assert done.exit_code == 0, done.output
            return str(done.stdout)

        async with running(tmp_path / "a", **TEXT) as a, running(tmp_path / "b", **TEXT) as b:
            for name, node in (("a", a), ("b", b)):
                url = f"http://127.0.0.1:{node.port}"
                await must("add-node", url, "--name", name, "--token", node.token)
            assert "org/tiny is on b now, from a." in await must("models", "pull", "org/tiny")
            (row,) = json.loads(await must("models", "--json"))
            places = row["nodes"]
            assert [(p["node"], p["state"]) for p in places] == [("a", "on_disk"), ("b", "on_disk")]
            assert all(p["disk_bytes"] > 1000 and p["node_free_bytes"] > 0 for p in places)
            removed = await must("models", "rm", "org/tiny", "--node", "a", "--yes")
            assert "deleted from a" in removed
            assert not (tmp_path / "a" / "models" / "org--tiny").exists()
        verbs = [entry["verb"] for entry in json.loads(await must("audit", "--json"))]
    assert verbs[:2] == ["model.remove", "model.pull"]
