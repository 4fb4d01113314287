"""Any order of requests, aborts, deaths, restarts, loads, unloads and clock jumps: every ticket
ends once, and nothing is left behind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import inf
from random import Random

import msgspec
import pytest

from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from router.scheduler.queue import AdmissionLimits
from router.scheduler.scheduler import MAX_ATTEMPTS, Scheduler
from router.types import (
    Action,
    Caller,
    Grant,
    Hints,
    Lease,
    Moment,
    NodeView,
    Priority,
    Queued,
    Ticket,
    Verdict,
)
from tests.router.conftest import node_view
from tests.router.scheduler.fleet import Prefixes, accounts, asking, cached_model, chain

SCHEDULES = 1_000_000 if os.environ.get("MLX_FLEET_SOAK") else 10_000
SHARDS = 10
STEPS = 24
NODES = ("a", "b", "c")
MODELS = ("m", "x")
TOKENS = (0, 100, 1_000, 8_000)


@dataclass
class Node:
    """One node's truth. It refuses what a real one would."""

    node_id: str
    instance: int = 1
    reachable: bool = True
    states: dict[str, ModelState] = field(default_factory=dict)
    running: dict[str, Lease] = field(default_factory=dict)
    """By ticket; of this instance."""

    @property
    def instance_id(self) -> str:
        return f"{self.node_id}{self.instance}"

    def view(self, told: bool) -> NodeView:
        models: list[ModelStatus] = [
            cached_model(name, 20_000, used_tokens=15_000, state=state, max_rows=2)
            if told
            else ModelStatus(name, state, 10**9, max_rows=2)
            for name, state in self.states.items()
        ]
        view = node_view(self.node_id, *models, reachable=self.reachable)
        assert view.status is not None
        status: NodeStatus = msgspec.structs.replace(
            view.status, instance_id=self.instance_id, models=tuple(models)
        )
        return msgspec.structs.replace(view, status=status)

    def unload_if_idle(self, model: str) -> None:
        if model in self.states and not any(x.model == model for x in self.running.values()):
            self.states[model] = ModelState.ON_DISK


class World:
    """Tickets, nodes and the scheduler between them."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.prefixes = Prefixes()
        self.scheduler = Scheduler(
            self.prefixes, AdmissionLimits(max_waiting=3, promote_after_s=5.0)
        )
        self.nodes = [
            Node(name, states=dict.fromkeys(self.chance.sample(MODELS, 1 + seed % 2), READY))
            for name in NODES
        ]
        self.told = bool(seed % 3)
        self.now_s = 0.0
        self.views = self.look()
        self.waiting: dict[str, Ticket] = {}
        self.leases: dict[str, Lease] = {}
        self.tickets: dict[str, Ticket] = {}
        self.ended: dict[str, str] = {}
        self.attempts: dict[str, int] = {}

    def look(self) -> tuple[NodeView, ...]:
        return tuple(node.view(self.told) for node in self.nodes)

    @property
    def moment(self) -> Moment:
        return Moment(self.now_s, self.views)

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.node_id == node_id)

    # --- what the scheduler says ---

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.take_grant(action)
            elif isinstance(action, Queued):
                assert action.ticket_id in self.waiting
                assert action.position >= 1
                assert 0.0 <= action.wait_s < inf
            else:
                self.end(action.ticket_id, "rejected", queued=True)

    def take_grant(self, grant: Grant) -> None:
        lease = grant.lease
        view = next(view for view in self.views if view.node_id == lease.node_id)
        assert view.reachable
        assert view.status is not None
        assert lease.instance_id == view.status.instance_id
        assert any(model.name == lease.model for model in view.status.models)
        assert self.tickets[lease.ticket_id].pinned_node_id in ("", lease.node_id)
        assert lease.ticket_id not in self.leases
        assert grant.decision.node_id == lease.node_id
        self.attempts[lease.ticket_id] = self.attempts.get(lease.ticket_id, 0) + 1
        assert self.attempts[lease.ticket_id] == lease.attempt <= MAX_ATTEMPTS
        del self.waiting[lease.ticket_id]
        self.leases[lease.ticket_id] = lease
        node = self.node(lease.node_id)
        if node.reachable and node.instance_id == lease.instance_id:
            node.running[lease.ticket_id] = lease

    def end(self, ticket_id: str, how: str, *, queued: bool = False) -> None:
        assert ticket_id not in self.ended
        self.ended[ticket_id] = how
        if queued:
            del self.waiting[ticket_id]

    # --- what happens ---

    def request(self) -> None:
        name = f"t{len(self.tickets)}"
        made = asking(
            name,
            self.chance.choice(TOKENS),
            of=self.chance.randrange(1, 4),
            model=self.chance.choice(MODELS),
            stream=self.chance.random() < 0.7,
            arrived_s=self.now_s,
            pinned_node_id=self.chance.choice((*NODES, "", "", "")),
            hints=Hints(self.chance.choice(("", "s1", "s2"))),
            priority=self.chance.choice(list(Priority)),
            deadline_s=self.now_s + self.chance.choice((inf, inf, 0.0, 4.0, 60.0)),
        )
        key = self.chance.choice("pq")
        made = msgspec.structs.replace(made, caller=Caller(key, key, frozenset({"inference"}), key))
        self.tickets[name] = self.waiting[name] = made
        self.take(self.scheduler.on_request(made, self.moment))
        assert name in self.waiting or name in self.leases or name in self.ended

    def leave(self) -> None:
        if self.waiting:
            name = self.chance.choice(list(self.waiting))
            self.end(name, "cancelled", queued=True)
            self.take(self.scheduler.on_left(name, self.moment))

    def content(self) -> None:
        if self.leases:
            lease = self.chance.choice(list(self.leases.values()))
            self.take(self.scheduler.on_first_content(lease, self.moment))

    def finish(self) -> None:
        if not self.leases:
            return
        lease = self.chance.choice(list(self.leases.values()))
        self.stop(lease)
        self.end(lease.ticket_id, self.chance.choice(("answered", "cancelled")))
        served = self.chance.random() < 0.2
        failed = not served and self.chance.random() < 0.2
        self.take(self.scheduler.on_done(lease, self.moment, served=served, failed=failed))
        if self.chance.random() < 0.8:
            told = accounts(lease, 1_000, self.chance.choice((0, 500)))
            self.scheduler.on_verdict(
                Verdict(lease, self.now_s, failed=self.chance.random() < 0.1, accounts=told)
            )

    def fail(self) -> None:
        if not self.leases:
            return
        lease = self.chance.choice(list(self.leases.values()))
        ticket = self.tickets[lease.ticket_id]
        self.stop(lease)
        self.waiting[lease.ticket_id] = ticket
        answered = self.chance.random() < 0.5
        self.take(self.scheduler.on_failed(lease, self.moment, answered=answered))

    def stop(self, lease: Lease) -> None:
        del self.leases[lease.ticket_id]
        self.node(lease.node_id).running.pop(lease.ticket_id, None)

    def change_node(self) -> None:
        node = self.chance.choice(self.nodes)
        what = self.chance.randrange(5)
        model = self.chance.choice(MODELS)
        if what == 0:
            node.reachable = not node.reachable
            node.running.clear()
        elif what == 1:
            node.instance += 1
            node.running.clear()
        elif what == 2 and model in node.states:
            node.states[model] = self.chance.choice((READY, ModelState.LOADING, ModelState.FAILED))
        elif what == 3:
            node.unload_if_idle(model)
        elif self.told:
            shared = chain(self.chance.randrange(1, 4), 1)
            self.prefixes.hold(node.node_id, shared, self.chance.choice((0, 300, 900)))
        if self.chance.random() < 0.7:
            self.tell()

    def tell(self) -> None:
        """The router hears what is true by now."""
        self.views = self.look()
        self.take(self.scheduler.on_fleet(self.moment))

    def remove_node(self) -> None:
        self.scheduler.on_node_removed(self.chance.choice(NODES))

    def pass_time(self) -> None:
        self.now_s = max(0.0, self.now_s + self.chance.choice((0.001, 0.3, 2.0, 40.0, 1e5, -3.0)))
        wake_s = self.scheduler.wake_s()
        assert (wake_s is None) == (not self.scheduler.queued)
        if wake_s is not None and wake_s <= self.now_s:
            self.take(self.scheduler.on_time(self.moment))

    # --- what must hold ---

    def check(self) -> None:
        assert self.scheduler.queued == len(self.waiting)
        assert self.scheduler.open_leases == len(self.leases)
        for node_id in NODES:
            held = sum(lease.node_id == node_id for lease in self.leases.values())
            assert self.scheduler.in_flight(node_id) == held

    def drain(self) -> None:
        """All nodes are well, what runs ends, and time passes: then nothing may wait."""
        for node in self.nodes:
            node.reachable = True
        self.tell()
        for _ in range(200):
            if not self.waiting and not self.leases:
                return
            while self.leases:
                self.finish()
            wake_s = self.scheduler.wake_s()
            if wake_s is not None:
                self.now_s = max(self.now_s, wake_s)
                self.take(self.scheduler.on_time(self.moment))
            self.check()
        raise AssertionError(f"{self.waiting} wait for ever")


READY = ModelState.READY
EVENTS = (
    (World.request, 10),
    (World.content, 4),
    (World.finish, 4),
    (World.fail, 2),
    (World.leave, 1),
    (World.change_node, 4),
    (World.remove_node, 1),
    (World.pass_time, 4),
)


def play(seed: int) -> None:
    world = World(seed)
    happenings = [event for event, _ in EVENTS]
    weights = [weight for _, weight in EVENTS]
    for happening in world.chance.choices(happenings, weights, k=STEPS):
        happening(world)
        world.check()
    world.drain()
    world.check()
    assert world.ended.keys() == world.tickets.keys()
    assert world.scheduler.queued == world.scheduler.open_leases == 0
    assert world.scheduler.wake_s() is None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_ticket_ends_once_and_nothing_is_left_behind(shard: int) -> None:
    for seed in range(shard, SCHEDULES, SHARDS):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error
