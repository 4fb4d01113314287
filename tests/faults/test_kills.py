"""Processes that are killed, or stopped, in the middle of a load, an unload, a pull, a drain or an
answer: what is reported after that is true within `TRUE_S`, and no process is left. Routers and
agents, whose starts take long, are in the middle of all four when they are killed."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import psutil
import pytest

from node.engines.load_history import LOAD_COOL_DOWN_S
from node.protocol.lifecycle import PATH_SHARE
from node.protocol.messages import PATH_STATUS, ModelState, StatusEvent, encode_status
from router.commands.client import AdminClient, CommandFailed, RouterAccess
from router.commands.drain import drain, read_options
from router.fleet import watcher as watcher_module
from router.states import ACTIVE, CORDONED
from tests.acceptance.processes import Agent, Router, agent
from tests.acceptance.processes import router as router_process
from tests.fakes import NO_TLS
from tests.faults.rig import (
    WAIT_S,
    Fleet,
    admin,
    chat,
    register,
    until,
)
from tests.node.model_folders import CONFIG, safetensors, share
from tests.router.conftest import (
    AddNode,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    answer_bytes,
    model_status,
    node_record,
    node_status,
    silent,
)
from tests.router.dispatch.test_relay import whole
from tests.router.leases import open_leases

TRUE_S = 2.0
FILES = {"config.json": CONFIG, "model.safetensors": safetensors(bytes(range(256)) * 48_000)}
WITHHELD_BYTES = 500_000
ALL_AT_ONCE = {
    "m": ModelState.LOADING,
    "serving": ModelState.READY,
    "leaving": ModelState.DRAINING,
    "org/p": ModelState.PULLING,
}
SCRIPT = {
    "models": [{"name": name} for name in ("m", "serving", "leaving")],
    "load_delay_s": 0.6,
    "unload_delay_s": 0.6,
    "token_interval_s": 0.02,
}


@dataclass
class Place:
    """An agent at one address, that is killed and started again there."""

    home: Path
    agent: Agent
    _stack: ExitStack

    @property
    def weights(self) -> Path:
        """Returns the path of the weights of the model that it pulls."""
        return self.home / "node" / "models" / "org--p" / "model.safetensors"

    async def killed(self) -> None:
        """Kills the agent; its engines have to end with it."""
        left = engines(self.agent.running.pid)
        self.agent.running.kill()
        await all_gone(left)

    def start_again(self) -> None:
        port = self.agent.url.rpartition(":")[2]
        self.agent = self._stack.enter_context(agent(self.home, SCRIPT, "--port", port))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("node")
    with ExitStack() as stack:
        yield Place(home, stack.enter_context(agent(home, SCRIPT)), stack)


@pytest.fixture
def node(place: Place) -> Agent:
    """The agent as it runs now."""
    return place.agent


def engines(pid: int) -> list[psutil.Process]:
    """The processes that an agent has started."""
    return psutil.Process(pid).children(recursive=True)


def states(each: Agent) -> dict[str, str]:
    return {model["name"]: model["state"] for model in each.get("/fleet/status")["models"]}


async def in_state(each: Agent, *wanted: ModelState, wait_s: float = WAIT_S) -> str:
    state = await until(lambda: (s := states(each)["m"]) in wanted and s, wait_s)
    return str(state)


def order(each: Agent, path: str, model: str = "m") -> asyncio.Task[httpx.Response]:
    """Tells the agent to load or unload a model."""

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(
            headers=each.headers, timeout=4 * WAIT_S, verify=NO_TLS
        ) as client:
            return await client.post(each.url + path, json={"model": model})

    return asyncio.create_task(post())


def answer(each: Agent) -> asyncio.Task[httpx.Response]:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(
            headers=each.headers, timeout=4 * WAIT_S, verify=NO_TLS
        ) as client:
            body = chat("m", max_tokens=3)
            return await client.post(each.url + "/v1/chat/completions", json=body)

    return asyncio.create_task(post())


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()


async def all_gone(processes: list[psutil.Process], wait_s: float = TRUE_S) -> None:
    def gone() -> bool:
        return not any(
            each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes
        )

    await until(gone, wait_s)


# --- engines ---


async def test_an_engine_killed_while_it_loads_fails_who_waits_and_loads_again(node: Agent) -> None:
    await in_state(node, ModelState.ON_DISK)
    waiting = answer(node)
    await in_state(node, ModelState.LOADING)
    killed = engines(node.running.pid)
    kill(killed)
    await in_state(node, ModelState.FAILED, wait_s=TRUE_S)
    assert (await waiting).status_code >= 500
    await all_gone(killed)
    status = node.get("/fleet/status")
    assert status["memory_leased_bytes"] == 0
    (failed,) = (each for each in status["models"] if each["name"] == "m")
    assert failed["reason"]
    refused = await answer(node)
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) <= LOAD_COOL_DOWN_S
    await loaded(node)
    assert (await answer(node)).status_code == 200
    assert (await order(node, "/fleet/unload")).status_code == 200


async def loaded(each: Agent, model: str = "m") -> None:
    assert (await order(each, "/fleet/load", model)).status_code == 200


async def test_an_engine_killed_while_it_unloads_is_unloaded(node: Agent) -> None:
    await loaded(node)
    unloading = order(node, "/fleet/unload")
    await in_state(node, ModelState.DRAINING)
    killed = engines(node.running.pid)
    kill(killed)
    await in_state(node, ModelState.ON_DISK, wait_s=TRUE_S)
    assert (await unloading).status_code == 200
    await all_gone(killed)
    assert node.get("/fleet/status")["memory_leased_bytes"] == 0


async def test_an_engine_killed_while_it_answers_is_started_by_the_next_request(
    node: Agent,
) -> None:
    await loaded(node)
    async with httpx.AsyncClient(headers=node.headers, timeout=WAIT_S, verify=NO_TLS) as client:
        body = chat("m", stream=True, max_tokens=1000)
        url = node.url + "/v1/chat/completions"
        async with client.stream("POST", url, json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            kill(engines(node.running.pid))
            rest = [line async for line in lines]
    assert any('"error"' in line for line in rest) and not any("[DONE]" in line for line in rest)
    await in_state(node, ModelState.ON_DISK, wait_s=TRUE_S)
    assert (await answer(node)).status_code == 200


# --- agents ---


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that soon gives up a silent agent."""
    monkeypatch.setattr("router.upstream.control_client.HEARTBEAT_S", 0.5)
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher_module, "MAX_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher_module, "LOST_GRACE_S", 0.3)


async def watch(router: RunningRouter, each: Agent, name: str) -> None:
    """Has a router in this process watch an agent in another one."""
    record = node_record(each.url, name, token=each.token, node_id=node_id(each))
    await asyncio.wait_for(router.core.watcher.watch(record), WAIT_S)


def node_id(each: Agent) -> str:
    return str(each.get("/fleet/status")["node_id"])


@pytest.mark.usefixtures("quick")
async def test_an_agent_that_is_stopped_is_left_by_its_requests(
    router: RunningRouter, add_node: AddNode, node: Agent
) -> None:
    await watch(router, node, "a")
    streaming = await router.post(chat("m", stream=True, max_tokens=100_000))
    await streaming.head()
    assert await streaming.chunk()
    node.running.process.send_signal(signal.SIGSTOP)
    try:
        # Comes while the router takes the node to be there, and has to go elsewhere.
        waiting = asyncio.create_task(answer_of(router))
        await until(lambda: open_leases(router.core.traffic) == 2)
        await add_node(router, "b", whole)
        assert await asyncio.wait_for(waiting, WAIT_S) == (200, "b")
        error = (await streaming.body()).decode()
        assert '"code":"node_failed"' in error and "[DONE]" not in error
        assert await answer_of(router) == (200, "b")
    finally:
        node.running.process.send_signal(signal.SIGCONT)
    await until(lambda: all(view.reachable for view in router.core.fleet.snapshot))


async def answer_of(router: RunningRouter) -> tuple[int, str]:
    """(status, node) of one answer."""
    caller = await router.post(chat("m", max_tokens=2))
    await caller.body()
    caller.leave()
    return caller.status, caller.headers.get("x-fleet-node", "")


# --- routers ---


@dataclass
class Front:
    """A router before the agent, that is killed and started again."""

    home: Path
    place: Place
    router: Router
    _stack: ExitStack
    peers: list[str] = field(default_factory=list)
    """Names of nodes that tests have added."""

    @property
    def fleet(self) -> Fleet:
        return Fleet(self.router, {"n": self.place.agent})

    async def kill_and_start(self) -> None:
        """Returns as soon as it knows the node, which has to be soon."""
        self.router.running.kill()
        self.router = self._stack.enter_context(router_process(self.home))
        await until(lambda: self.row()["reachable"], TRUE_S)

    def row(self) -> dict[str, Any]:
        """The node, as an admin sees it."""
        url = self.router.url + "/admin/nodes"
        rows = httpx.get(url, headers=admin(self.router), timeout=WAIT_S, verify=NO_TLS).json()
        (row,) = (row for row in rows if row["name"] == "n")
        assert isinstance(row, dict)
        return row

    def uncordon(self) -> None:
        """Uncordons the node as `router uncordon` does, without a process for it."""
        url = self.router.url + "/admin/nodes/state"
        order = {"node": "n", "state": ACTIVE}
        answer = httpx.post(
            url, headers=admin(self.router), json=order, timeout=WAIT_S, verify=NO_TLS
        )
        answer.raise_for_status()

    async def order(self, path: str, **fields: str) -> httpx.Response:
        """Sends a command of an admin to the router."""
        async with httpx.AsyncClient(
            headers=admin(self.router), timeout=4 * WAIT_S, verify=NO_TLS
        ) as client:
            return await client.post(f"{self.router.url}/admin/{path}", json=fields)

    def shown(self) -> dict[str, str]:
        return {model["name"]: model["state"] for model in self.row()["models"]}


@pytest.fixture(scope="module")
def front(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    home = tmp_path_factory.mktemp("router")
    with ExitStack() as stack:
        first = stack.enter_context(router_process(home))
        register(first, "n", place.agent)
        yield Front(home, place, first, stack)


@asynccontextmanager
async def draining(front: Front, model: str = "m") -> AsyncIterator[asyncio.Task[None]]:
    """Runs `router drain` while a stream goes on, and yields its task once the node is cordoned."""
    await loaded(front.place.agent, model)
    call = await front.fleet.post(model, stream=True, max_tokens=100_000)
    await call.caller.head()

    def command() -> None:
        client = AdminClient(RouterAccess(front.router.url, front.home / "router"))
        drain(client, read_options("n", "30s", cut=False))

    task = asyncio.create_task(asyncio.to_thread(command))
    await until(lambda: front.row()["state"] == CORDONED)
    yield task


async def test_an_engine_killed_during_a_drain_ends_it(front: Front) -> None:
    async with draining(front) as command:
        kill(engines(front.place.agent.running.pid))
        await asyncio.wait_for(command, WAIT_S)
        assert front.row()["state"] == CORDONED
        front.uncordon()
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 200


@dataclass
class Peer:
    """A node agent that withholds the end of the weights that another one copies from it."""

    node: ScriptedNode
    go_on: asyncio.Event

    @classmethod
    async def start(cls, start_node: StartNode, front: Front) -> Peer:
        name = f"peer{len(front.peers)}"
        status = node_status(model_status("org/p", state=ModelState.ON_DISK), node_id=name)
        peer = cls(await start_node(silent, first_events=(StatusEvent(status),)), asyncio.Event())

        async def script(request: Request) -> None:
            if request.target == PATH_STATUS:
                await request.answer(encode_status(status))
            elif request.target == PATH_SHARE:
                await request.answer(msgspec.json.encode(share(FILES, "hub:org/p@c0ffee")))
            else:
                await peer.give(request)

        peer.node.script = script
        given = {"url": peer.node.url, "name": name, "token": "secret"}
        assert (await front.order("nodes", **given)).is_success
        front.peers.append(name)
        return peer

    async def give(self, request: Request) -> None:
        """The rest of a file."""
        path = parse_qs(urlsplit(request.target).query)["path"][0]
        data, begin = FILES[path], int((request.header("range") or "bytes=0-")[6:-1])
        headers = {"content_range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
        withheld = min(len(data) - begin, WITHHELD_BYTES)
        whole = answer_bytes(data[begin:], "206 Partial Content", **headers)
        await request.write(whole[:-withheld])
        if path.endswith(".safetensors"):
            await self.go_on.wait()
        await request.write(whole[-withheld:])

    def ranges(self) -> list[str | None]:
        """Returns the ranges of the weights that were requested."""
        requests = [each for each in self.node.requests if "safetensors" in each.target]
        return [each.header("range") for each in requests]


@dataclass
class AtOnce:
    """A node with everything in progress: it serves, loads, unloads, pulls and is drained."""

    drain: asyncio.Task[None]
    orders: list[asyncio.Task[httpx.Response]]
    """To load and to unload."""
    peer: Peer

    async def over(self) -> None:
        """Whoever ordered has received that it failed."""
        for task in self.orders:
            await asyncio.wait({task})
            assert task.exception() is not None or task.result().is_error


@asynccontextmanager
async def at_once(front: Front, start_node: StartNode) -> AsyncIterator[AtOnce]:
    node, weights = front.place.agent, front.place.weights
    await order(node, "/fleet/unload")
    await loaded(node, "leaving")
    peer = await Peer.start(start_node, front)
    begun = await front.order("models/pull", model="org/p", node="n", from_node=front.peers[-1])
    assert begun.status_code == 202, begun.text
    await until(lambda: weights.exists() and weights.stat().st_size > 1_000_000)
    async with draining(front, "serving") as command:
        orders = [
            asyncio.create_task(front.order("models/load", model="m", node="n")),
            asyncio.create_task(front.order("models/unload", model="leaving", node="n")),
        ]
        await until(lambda: states(node) == ALL_AT_ONCE)
        yield AtOnce(command, orders, peer)


async def test_a_router_killed_while_a_node_loads_unloads_pulls_and_drains_has_the_true_state(
    front: Front, start_node: StartNode
) -> None:
    node = front.place.agent
    async with at_once(front, start_node) as works:
        await front.kill_and_start()
        await until(lambda: front.shown() == states(node), TRUE_S)
        assert front.row()["state"] == CORDONED
        await works.over()
        with pytest.raises(CommandFailed):
            await works.drain
        # The work of a caller whose router died is over; what an admin has ordered goes on.
        await until(lambda: front.fleet.active("n") == 0)
        works.peer.go_on.set()
        still = {"m": "ready", "serving": "ready", "leaving": "on_disk"}
        await until(lambda: states(node) == front.shown() == still)
        assert front.place.weights.read_bytes() == FILES["model.safetensors"]
        assert works.peer.ranges().count("bytes=0-") == 1
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 503
        front.uncordon()
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 200
    shutil.rmtree(front.place.weights.parent)


async def test_an_agent_killed_while_it_loads_unloads_pulls_and_drains_reports_the_true_state(
    front: Front, start_node: StartNode
) -> None:
    async with at_once(front, start_node) as works:
        await front.place.killed()
        here = front.place.weights.stat().st_size
        await works.over()
        await asyncio.wait_for(works.drain, WAIT_S)
        front.place.start_again()
        node = front.place.agent
        at_rest = dict.fromkeys(("m", "serving", "leaving"), "on_disk")
        assert states(node) == {**at_rest, "org/p": "pulling"}
        assert node.get("/fleet/status")["memory_leased_bytes"] == 0
        await until(lambda: front.row()["reachable"] and front.shown() == states(node), TRUE_S)
        assert front.row()["state"] == CORDONED
        works.peer.go_on.set()
        await until(lambda: states(node) == at_rest)
        assert front.place.weights.read_bytes() == FILES["model.safetensors"]
        assert works.peer.ranges().count("bytes=0-") == 1
        assert f"bytes={here}-" in works.peer.ranges()
        front.uncordon()
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 200
