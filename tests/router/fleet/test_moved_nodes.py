"""Paired nodes that are found again at another address, with real agents."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from registry import audit, nodes
from registry.records import NodeRecord
from router.errors import DiscoveryFailed
from router.fleet.discovery import Discovery, FoundService
from router.fleet.moved_nodes import MovedNodes
from router.upstream.credentials import NodeCredential
from tests.node.serving import RunningAgent, running
from tests.router.conftest import RunningRouter
from tests.router.fleet.test_discovery import txt
from tests.router.upstream.man_in_the_middle import man_in_the_middle

OLD_URL = "https://127.0.0.1:1"


@dataclass
class World:
    router: RunningRouter
    agent: RunningAgent
    services: list[FoundService]
    node_id: str
    looks: int = 0
    fails: bool = False

    async def browse(self, _wait_s: float) -> Sequence[FoundService]:
        self.looks += 1
        if self.fails:
            raise OSError("no network")
        return self.services

    def announce(self, port: int, node_id: str | None = None) -> None:
        node_id = self.node_id if node_id is None else node_id
        self.services.append(FoundService("studio", port, ("127.0.0.1",), txt(node_id)))

    async def look(self) -> None:
        core = self.router.core
        moved = MovedNodes(core.registry, core.fleet, core.watcher, Discovery(self.browse))
        await moved.look_for(list(core.fleet.snapshot))

    async def record(self) -> NodeRecord:
        async with self.router.core.registry.read() as session:
            (record,) = await nodes.list_all(session)
        return record

    async def verbs(self) -> list[tuple[str, str, str]]:
        async with self.router.core.registry.read() as session:
            entries = await audit.recent(session, 10)
        return [(each.actor, each.verb, each.detail) for each in entries]


@pytest_asyncio.fixture
async def world(router: RunningRouter, tmp_path: Path) -> AsyncIterator[World]:
    """A node that is registered at an address where nothing listens any more."""
    async with running(tmp_path / "node") as agent:
        core = router.core
        secret = await agent.app.desk.pairings.add(core.router_id, "desk")
        pem = ssl.DER_cert_to_PEM_cert(agent.app.certificate.der)
        credential = NodeCredential(secret, certificate=pem)
        node_id = agent.app.agent.identity.node_id
        record = NodeRecord(node_id, "studio", OLD_URL, "agent", credential.text(), 1.0)
        await core.registry.write(lambda session: nodes.add(session, record))
        await core.watcher.watch(record)
        yield World(router, agent, [], node_id)


async def test_a_node_is_followed_to_its_new_address(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.announce(world.agent.port)
    await world.look()
    assert (await world.record()).url == world.agent.tls_url
    client = world.router.core.watcher.client(world.node_id)
    assert client is not None and client.url == world.agent.tls_url
    assert (await world.verbs())[0] == (
        "router",
        "node.move",
        f"from {OLD_URL} to {world.agent.tls_url}",
    )
    assert any("has moved" in message for message in caplog.messages)


async def test_an_announcement_alone_moves_no_node(world: World, tmp_path: Path) -> None:
    async with man_in_the_middle(tmp_path, world.agent.port) as man:
        world.announce(man.port)
        world.announce(world.agent.port, "another id")
        await world.look()
        assert man.read == b""
    assert (await world.record()).url == OLD_URL
    assert "node.move" not in [verb for _, verb, _ in await world.verbs()]


async def test_a_node_with_a_token_is_not_looked_for(world: World) -> None:
    core = world.router.core
    text = NodeCredential("token").text()
    await core.registry.write(lambda session: nodes.set_access(session, "studio", credential=text))
    await world.look()
    assert world.looks == 0


async def test_a_network_that_cannot_be_searched_changes_nothing(world: World) -> None:
    world.fails = True
    with pytest.raises(DiscoveryFailed):
        await Discovery(world.browse).look()
    await world.look()
    assert (await world.record()).url == OLD_URL


async def test_only_silent_nodes_of_other_machines_are_missing(world: World) -> None:
    core = world.router.core
    (view,) = core.fleet.snapshot
    since_s = view.silent_since_s
    assert since_s is not None
    near = MovedNodes(core.registry, core.fleet, core.watcher, Discovery(world.browse))
    far = MovedNodes(
        core.registry, core.fleet, core.watcher, Discovery(world.browse), lambda _host: False
    )
    assert not near._is_missing(view, since_s + 60)
    assert far._is_missing(view, since_s + 60)
    assert not far._is_missing(view, since_s + 1)
