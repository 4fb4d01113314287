"""Processes that are killed, or stopped, in the middle of a load, an unload, a drain or an answer:
what is told after that is true within `TRUE_S`, and no process is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from node.protocol.messages import ModelState
from router import watcher as watcher_module
from router.commands.client import AdminClient, CommandFailed
from router.commands.client import Place as CommandPlace
from router.commands.drain import asked, drain
from router.types import ACTIVE, CORDONED
from tests.acceptance.processes import Agent, Router, agent
from tests.acceptance.processes import router as router_process
from tests.faults.rig import (
    WAIT_S,
    Fleet,
    admin,
    chat,
    register,
    until,
)
from tests.router.conftest import AddNode, RunningRouter, node_record
from tests.router.test_relay import whole

TRUE_S = 2.0
SCRIPT = {
    "models": [{"name": "m"}],
    "load_delay_s": 0.4,
    "unload_delay_s": 0.4,
    "token_interval_s": 0.02,
}


@dataclass
class Place:
    """An agent at one address, that is killed and started again there."""

    home: Path
    agent: Agent
    _stack: ExitStack

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
    told = await until(lambda: (s := states(each)["m"]) in wanted and s, wait_s)
    return str(told)


def order(each: Agent, path: str) -> asyncio.Task[httpx.Response]:
    """Tells the agent to load or unload its model."""

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(headers=each.headers, timeout=4 * WAIT_S) as client:
            return await client.post(each.url + path, json={"model": "m"})

    return asyncio.create_task(post())


def answer(each: Agent) -> asyncio.Task[httpx.Response]:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(headers=each.headers, timeout=4 * WAIT_S) as client:
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
    told = await in_state(node, ModelState.FAILED, ModelState.ON_DISK, wait_s=TRUE_S)
    assert (await waiting).status_code >= 500
    await all_gone(killed)
    status = node.get("/fleet/status")
    assert status["memory_leased_bytes"] == 0
    if told == ModelState.FAILED:
        assert status["models"][0]["reason"]


async def loaded(each: Agent) -> None:
    # A load that has failed is not tried again for a while, unless it is taken back.
    assert (await order(each, "/fleet/unload")).status_code == 200
    assert (await order(each, "/fleet/load")).status_code == 200


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
    async with httpx.AsyncClient(headers=node.headers, timeout=WAIT_S) as client:
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


@pytest.mark.parametrize(
    ("path", "state"),
    [("/fleet/load", ModelState.LOADING), ("/fleet/unload", ModelState.DRAINING)],
)
async def test_an_agent_that_is_killed_leaves_no_engine_and_tells_the_truth_when_it_is_back(
    place: Place, node: Agent, path: str, state: ModelState
) -> None:
    await loaded(node)
    if state is ModelState.LOADING:
        assert (await order(node, "/fleet/unload")).status_code == 200
    task = order(node, path)
    await in_state(node, state)
    assert engines(node.running.pid)
    await place.killed()
    with pytest.raises(httpx.HTTPError):
        await task
    place.start_again()
    assert states(place.agent) == {"m": ModelState.ON_DISK}
    assert place.agent.get("/fleet/status")["memory_leased_bytes"] == 0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that soon gives up a silent agent."""
    monkeypatch.setattr("router.node_client.HEARTBEAT_S", 0.5)
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
        await until(lambda: router.core.dispatcher.open_leases == 2)
        await add_node(router, "b", whole)
        assert await asyncio.wait_for(waiting, WAIT_S) == (200, "b")
        error = (await streaming.body()).decode()
        assert '"code":"node_failed"' in error and "[DONE]" not in error
        assert await answer_of(router) == (200, "b")
    finally:
        node.running.process.send_signal(signal.SIGCONT)
    await until(lambda: all(view.reachable for view in router.core.fleet.snapshot))


@pytest.mark.usefixtures("quick")
async def test_an_agent_that_is_killed_while_it_is_cordoned_is_so_when_it_is_back(
    router: RunningRouter, place: Place, node: Agent
) -> None:
    await watch(router, node, "a")
    streaming = await router.post(chat("m", stream=True, max_tokens=100_000))
    await streaming.head()
    assert await streaming.chunk()
    router.core.fleet.set_state(node_id(node), CORDONED)
    await place.killed()
    assert '"code":"node_failed"' in (await streaming.body()).decode()
    await until(lambda: router.core.dispatcher.open_leases == 0)
    place.start_again()
    (view,) = await until(lambda: [v for v in router.core.fleet.snapshot if v.reachable], TRUE_S)
    assert view.state == CORDONED
    assert (await answer_of(router))[0] == 503
    router.core.fleet.set_state(view.node_id, ACTIVE)
    assert (await answer_of(router))[0] == 200


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
        (row,) = httpx.get(url, headers=admin(self.router), timeout=WAIT_S).json()
        assert isinstance(row, dict)
        return row

    def uncordon(self) -> None:
        """As `router uncordon`, without a process for it."""
        url = self.router.url + "/admin/nodes/state"
        order = {"node": "n", "state": ACTIVE}
        answer = httpx.post(url, headers=admin(self.router), json=order, timeout=WAIT_S)
        answer.raise_for_status()

    def shown_state(self) -> str:
        (model,) = self.row()["models"]
        return str(model["state"])


@pytest.fixture(scope="module")
def front(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    home = tmp_path_factory.mktemp("router")
    with ExitStack() as stack:
        first = stack.enter_context(router_process(home))
        register(first, "n", place.agent)
        yield Front(home, place, first, stack)


async def test_a_router_killed_during_a_load_shows_what_is_true_when_it_is_back(
    node: Agent, front: Front
) -> None:
    assert (await order(node, "/fleet/unload")).status_code == 200
    await front.fleet.post("m", stream=True, max_tokens=100_000)
    await in_state(node, ModelState.LOADING)
    await front.kill_and_start()
    await until(lambda: front.shown_state() == states(node)["m"], TRUE_S)
    assert (await front.fleet.answer("m", max_tokens=2))[0] == 200
    # The work of a caller whose router died is over.
    await until(lambda: front.fleet.active("n") == 0)


@asynccontextmanager
async def draining(front: Front) -> AsyncIterator[asyncio.Task[None]]:
    """What `router drain` does, while a stream goes on, once the node is cordoned."""
    await loaded(front.place.agent)
    call = await front.fleet.post("m", stream=True, max_tokens=100_000)
    await call.caller.head()

    def command() -> None:
        with AdminClient(CommandPlace(front.router.url, front.home / "router")) as client:
            drain(client, asked("n", "30s", cut=False))

    task = asyncio.create_task(asyncio.to_thread(command))
    await until(lambda: front.row()["state"] == CORDONED)
    yield task


async def test_a_router_killed_during_a_drain_keeps_the_node_cordoned(front: Front) -> None:
    async with draining(front) as command:
        await front.kill_and_start()
        with pytest.raises(CommandFailed):
            await command
        assert front.row()["state"] == CORDONED
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 503
        front.uncordon()
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 200


async def test_an_engine_killed_during_a_drain_ends_it(front: Front) -> None:
    async with draining(front) as command:
        kill(engines(front.place.agent.running.pid))
        await asyncio.wait_for(command, WAIT_S)
        assert front.row()["state"] == CORDONED
        front.uncordon()
        assert (await front.fleet.answer("m", max_tokens=2))[0] == 200
