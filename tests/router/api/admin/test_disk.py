"""The target and the source of a pull; nodes are played."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.protocol.lifecycle import ManifestFile, Peer, PullCommand, Share
from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from registry.records import NodeRecord
from router.api.admin.bodies import ModelOrder
from router.api.admin.disk import cancel_pull, pull_model, remove_model
from router.api.admin.disk_views import PullBody, RemoveBody
from router.api.admin.gate import Admin
from router.errors import (
    BadRequest,
    Conflict,
    NodeRefused,
    NodeUnreachable,
    NoNodeReady,
    NotFound,
    RouterError,
    UnknownModel,
)
from router.fleet.fleet import Fleet
from router.upstream.credentials import NodeCredential

GB = 10**9
SHARE = Share("t", "hub:org/m@c", (ManifestFile("config.json", 2, "00"),))


def a_model(name: str = "org/m", state: ModelState = ModelState.ON_DISK) -> ModelStatus:
    return ModelStatus(name=name, state=state, weight_bytes=GB, since_unix_s=7.0)


@dataclass
class PlayedNode:
    """The orders that one node gets; it refuses where it has a `refuses`."""

    status: NodeStatus
    refuses: str = ""
    url: str = ""
    orders: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def control(self) -> "PlayedNode":
        return self

    async def pull(self, command: PullCommand) -> NodeStatus:
        self._take("pull", command)
        begun = a_model(command.model, ModelState.PULLING)
        return cast(NodeStatus, SimpleNamespace(models=(a_model("other"), begun)))

    async def pull_cancel(self, model: str) -> None:
        self._take("cancel", model)

    async def remove(self, model: str) -> None:
        self._take("remove", model)

    async def as_peer(self, model: str) -> Peer:
        self._take("share", model)
        return Peer(self.url, SHARE, "its certificate")

    def _take(self, verb: str, what: Any) -> None:
        if self.refuses:
            raise NodeRefused(self.refuses)
        self.orders.append((verb, what))


class World:
    """A fleet of played nodes, and the admin that gives orders."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.nodes: dict[str, PlayedNode] = {}
        self.busy: dict[str, int] = {}
        self.noted: list[tuple[str, str, str]] = []
        self.core = SimpleNamespace(
            fleet=self.fleet,
            watcher=SimpleNamespace(client=self.nodes.get),
            traffic=SimpleNamespace(in_flight=lambda node_id: self.busy.get(node_id, 0)),
        )
        self.admin = cast(Admin, self)

    async def note(self, verb: str, subject: str, detail: str) -> None:
        self.noted.append((verb, subject, detail))

    def add(self, name: str, *models: ModelStatus, free_bytes: int = 9 * GB, url: str = "") -> None:
        url = url or f"http://{name}:8801"
        record = NodeRecord(name, name, url, "agent", NodeCredential("t").text(), 1.0)
        status = NodeStatus(
            protocol=1,
            node_id=name,
            instance_id="i",
            version="0",
            engine="text",
            chip="M4",
            memory_budget_bytes=GB,
            memory_leased_bytes=0,
            models=models,
            disk_free_bytes=free_bytes,
        )
        self.fleet.add(record)
        self.fleet.on_status(name, status)
        self.nodes[name] = PlayedNode(status, url=url)

    def pulled(self, name: str) -> PullCommand:
        """The one pull that was ordered from the node."""
        ((verb, command),) = self.nodes[name].orders
        assert verb == "pull" and isinstance(command, PullCommand)
        return command

    async def fails(self, error: type[RouterError], words: str, **fields: Any) -> None:
        with pytest.raises(error, match=words):
            await pull_model(self.admin, PullBody(model=fields.pop("model", "org/m"), **fields))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_copy_in_the_network_is_preferred_to_the_hub(world: World) -> None:
    world.add("a", a_model())
    world.add("b")
    started = await pull_model(world.admin, PullBody(model="org/m", node="b", hub_token=" s "))
    assert (started.node, started.source, started.since_s) == ("b", "a", 7.0)
    command = world.pulled("b")
    assert command.peer is not None
    assert (command.peer.url, command.peer.share) == ("http://a:8801", SHARE)
    assert command.peer.certificate == "its certificate"
    # So that the node can go on there if the peer fails.
    assert (command.repo_id, command.token) == ("org/m", "s")
    assert world.noted == [("model.pull", "org/m", "to b, from a")]


async def test_the_source_is_the_node_with_fewest_requests(world: World) -> None:
    for name in ("a", "b", "c"):
        world.add(name, a_model())
    world.add("d")
    world.busy = {"a": 2, "b": 1, "c": 3}
    assert (await pull_model(world.admin, PullBody(model="org/m"))).source == "b"


async def test_the_target_is_where_it_has_begun_else_where_most_disk_is_free(world: World) -> None:
    world.add("a", free_bytes=1 * GB)
    world.add("b", free_bytes=3 * GB)
    world.add("full", a_model(), free_bytes=9 * GB)
    assert (await pull_model(world.admin, PullBody(model="org/m"))).node == "b"
    world.fleet.set_state("b", "cordoned")
    assert (await pull_model(world.admin, PullBody(model="org/m"))).node == "a"
    world.fleet.set_state("b", "active")
    world.add("begun", a_model(state=ModelState.PULLING), free_bytes=1)
    assert (await pull_model(world.admin, PullBody(model="org/m"))).node == "begun"


@pytest.mark.parametrize(
    ("fields", "repo_id"),
    [
        ({"revision": "v2"}, "org/m"),
        ({"repo": "other/m"}, "other/m"),
    ],
)
async def test_what_no_node_certainly_has_is_pulled_from_the_hub(
    world: World, fields: dict[str, str], repo_id: str
) -> None:
    world.add("a", a_model())
    world.add("b")
    started = await pull_model(world.admin, PullBody(model="org/m", node="b", **fields))
    assert started.source == f"the hub's {repo_id}"
    command = world.pulled("b")
    assert (command.peer, command.repo_id, command.revision) == (
        None,
        repo_id,
        fields.get("revision"),
    )


async def test_a_node_that_cannot_share_gives_way_to_the_hub(world: World) -> None:
    world.add("a", a_model(), a_model("plain"))
    world.nodes["a"].refuses = "Its files cannot be read."
    world.add("b")
    assert (await pull_model(world.admin, PullBody(model="org/m"))).source == "the hub's org/m"
    await world.fails(NodeRefused, "cannot be read", from_node="a")
    await world.fails(NodeRefused, "cannot be read", model="plain")


async def test_an_address_of_the_routers_own_machine_is_no_source_for_others(world: World) -> None:
    world.add("local", a_model(), url="http://127.0.0.1:8801")
    world.add("other")
    started = await pull_model(world.admin, PullBody(model="org/m"))
    assert started.source == "the hub's org/m"
    assert "knows the node 'local', which has the model, by" in started.note
    await world.fails(BadRequest, "under its name in the network", from_node="local")
    world.add("plain", a_model("plain"), url="http://localhost:8801")
    words = "'plain', which .* its name in the network"
    await world.fails(Conflict, words, model="plain", node="other")
    assert not (await pull_model(world.admin, PullBody(model="org/m", revision="v2"))).note
    world.add("reached", a_model())
    assert not (await pull_model(world.admin, PullBody(model="org/m"))).note
    world.fleet.lost("reached", "It went.")
    world.add("near", url="http://127.0.0.1:8802", free_bytes=99 * GB)
    assert (await pull_model(world.admin, PullBody(model="org/m"))).source == "local"


async def test_a_model_that_is_there_is_not_pulled(world: World) -> None:
    world.add("a", a_model())
    started = await pull_model(world.admin, PullBody(model="org/m", node="a"))
    assert (started.node, started.source) == ("a", "")
    assert world.nodes["a"].orders == []
    await world.fails(Conflict, "has the model 'org/m' already")


async def test_nodes_that_accept_no_models_are_distinguished_from_those_that_have_it(
    world: World,
) -> None:
    world.add("a", a_model())
    world.add("b")
    world.add("c")
    world.fleet.set_state("b", "maintenance")
    world.fleet.set_state("c", "cordoned")
    message = "b is under maintenance, c is cordoned; `router uncordon b` ends that"
    await world.fails(Conflict, message)
    await world.fails(Conflict, "'b' is under maintenance, so that nothing is pulled", node="b")
    assert not world.nodes["b"].orders
    assert (await pull_model(world.admin, PullBody(model="org/m", node="c"))).source == "a"


async def test_a_pull_that_cannot_be_is_refused_with_what_to_do(world: World) -> None:
    await world.fails(NoNodeReady, "router nodes")
    world.add("a", a_model(state=ModelState.PULLING))
    world.add("b")
    await world.fails(UnknownModel, "--repo OWNER/NAME", model="plain")
    await world.fails(NotFound, "no node 'c'", node="c")
    await world.fails(Conflict, "not complete on 'a' yet", node="b", from_node="a")
    await world.fails(BadRequest, "revision", node="b", from_node="a", revision="v2")
    world.fleet.lost("b", "It went.")
    await world.fails(NodeUnreachable, "It went", node="b")


async def test_a_pull_is_cancelled_where_it_runs(world: World) -> None:
    world.add("a", a_model(state=ModelState.PULLING))
    world.add("b", a_model())
    done = await cancel_pull(world.admin, ModelOrder(model="org/m"))
    assert done.nodes == ("a",)
    assert world.nodes["a"].orders == [("cancel", "org/m")]
    assert world.noted == [("model.cancel_pull", "org/m", "to a")]
    with pytest.raises(Conflict, match="not being pulled to b"):
        await cancel_pull(world.admin, ModelOrder(model="org/m", node="b"))


async def test_a_model_is_deleted_where_it_is_not_in_memory(world: World) -> None:
    world.add("a", a_model())
    world.add("b", a_model(state=ModelState.READY))
    world.add("c", a_model(state=ModelState.PULLING))
    for name in ("a", "c"):
        done = await remove_model(world.admin, RemoveBody(model="org/m", node=name))
        assert done.nodes == (name,)
        assert world.nodes[name].orders == [("remove", "org/m")]
    assert world.noted[0] == ("model.remove", "org/m", "from a")
    with pytest.raises(Conflict, match="`router unload org/m --node b` first"):
        await remove_model(world.admin, RemoveBody(model="org/m", node="b"))
    with pytest.raises(UnknownModel):
        await remove_model(world.admin, RemoveBody(model="none", node="a"))
