"""Tests a router and an agent of two versions of the protocol that follow each other, over real
sockets: the older side is today's code, the newer one has a version to come."""

from pathlib import Path
from types import ModuleType

import pytest

from node.agent import agent as agent_module
from node.protocol.messages import PROTOCOL_VERSION, ModelState, NodeStatus
from node.protocol.versions import Change, Fields, Versions
from node.server import control_auth
from router.errors import WrongNodeProtocol
from router.fleet import watcher
from router.upstream import control_channel
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from tests.faults.rig import add_real, until_async
from tests.node.serving import RunningAgent, running
from tests.router.conftest import RunningRouter, running_router

MODEL = "scripted"


class Notes:
    """Translates nothing but the chip of a status, and notes which messages it has seen."""

    def __init__(self) -> None:
        self.newer: set[str] = set()
        self.older: set[str] = set()

    def to_older(self, name: str, fields: Fields) -> Fields | None:
        self.older.add(name)
        status = fields["status"] if name == "StatusEvent" else fields
        if name in ("StatusEvent", "NodeStatus"):
            status["chip"] = f"older {status['chip']}"
        return fields

    def to_newer(self, name: str, fields: Fields) -> Fields:
        self.newer.add(name)
        status = fields["status"] if name == "StatusEvent" else fields
        if name in ("StatusEvent", "NodeStatus"):
            status["chip"] = f"newer {status['chip']}"
        return fields

    def versions(self) -> Versions:
        """The version after today's, and today's."""
        newest = PROTOCOL_VERSION + 1
        return Versions(newest, newest - 1, {newest: Change(self.to_older, self.to_newer)})


async def serve_and_command(router: RunningRouter, agent: RunningAgent) -> NodeStatus:
    """Adds the agent, sends a request and two commands; returns the router's status of it."""
    await add_real(router, agent, "mac")
    response = await router.post(
        {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
    )
    assert b'"finish_reason"' in await response.body()
    view = router.core.fleet.by_name("mac")
    assert view is not None
    client = router.core.watcher.client(view.node_id)
    assert client is not None
    await client.control.unload(MODEL)
    await client.control.load(MODEL)

    async def loaded() -> NodeStatus | None:
        view = router.core.fleet.by_name("mac")
        status = view.status if view and view.reachable else None
        return status if status and status.models[0].state is ModelState.READY else None

    status = await until_async(loaded)
    assert isinstance(status, NodeStatus)
    return status


async def test_a_newer_router_speaks_with_an_agent_of_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    monkeypatch.setattr(control_channel, "SPOKEN", notes.versions())
    monkeypatch.setattr(watcher, "SPOKEN", notes.versions())
    async with running_router(tmp_path) as router, running(tmp_path / "mac") as agent:
        status = await serve_and_command(router, agent)
    assert status.protocol == PROTOCOL_VERSION
    assert status.chip.startswith("newer ")
    assert notes.older >= {"ModelCommand", "UnloadCommand"}
    assert notes.newer >= {"StatusEvent", "Finished"}


async def test_a_newer_agent_speaks_with_a_router_of_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    monkeypatch.setattr(control_auth, "SPOKEN", notes.versions())
    monkeypatch.setattr(agent_module, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    async with running_router(tmp_path) as router, running(tmp_path / "mac") as agent:
        status = await serve_and_command(router, agent)
    assert status.protocol == PROTOCOL_VERSION
    assert status.chip.startswith("older ")
    assert notes.newer >= {"ModelCommand", "UnloadCommand"}
    assert notes.older >= {"StatusEvent", "Finished", "NodeStatus"}


@pytest.mark.parametrize(
    ("newer", "words"),
    [(control_channel, "The agent is the older one: upgrade"), (control_auth, "which is older")],
    ids=["router", "agent"],
)
async def test_of_versions_that_are_further_apart_the_older_side_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: ModuleType, words: str
) -> None:
    far = Versions(PROTOCOL_VERSION + 2, PROTOCOL_VERSION + 1)
    monkeypatch.setattr(newer, "SPOKEN", far)
    async with running(tmp_path) as agent:
        url = f"http://127.0.0.1:{agent.port}"
        async with NodeClient(url, NodeCredential(agent.token)) as client:
            with pytest.raises(WrongNodeProtocol, match=words):
                await client.control.status()
