"""Any order of requests, aborts, deaths, restarts, stale events, loads, unloads and clock jumps:
every ticket ends once, none waits for nothing, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from math import inf
from random import Random
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from node.engines import processes as engines_module
from node.errors import ModelBusy, NodeError
from node.protocol.messages import PrefixDelta, PrefixGone, PrefixSnapshot, StatusEvent
from router.api.admin.models import chosen_node
from router.core import Core
from router.dispatch.scheduler_driver import SchedulerDriver
from router.errors import RouterError
from router.fleet.fleet import Fleet
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.records.decisions import Decisions
from router.records.metrics import Metrics
from router.scheduler.placement import MAX_AHEAD_S
from router.scheduler.queue import AdmissionLimits
from router.scheduler.residency import displacement
from router.scheduler.scheduler import MAX_ATTEMPTS, Scheduler
from router.states import ACTIVE, CORDONED
from router.types import (
    Caller,
    Decision,
    Failure,
    Hints,
    Lease,
    Moment,
    NodeTerms,
    NodeView,
    Priority,
    Ticket,
    Verdict,
)
from router.upstream.foreign_nodes import foreign_status
from tests.router.leases import open_leases
from tests.router.scheduler.fleet import a_ticket, usage_record
from tests.router.scheduler.played import (
    CHAINS,
    MAX_POSITIONS,
    MODELS,
    ROWS,
    Depths,
    Fate,
    PlayedAgent,
    PlayedLink,
    PlayedServer,
    SetClock,
    StreamedEvent,
    chain_of,
)

SCHEDULES = 1_000_000 if os.environ.get("MLX_FLEET_SOAK") else 10_000
FIRST = int(os.environ.get("MLX_FLEET_SOAK_FROM") or 0)
"""A run that was broken off goes on there."""
SHARD = 250
"""So that none takes long on a busy machine."""
STEPS = 14
AGENTS = ("a", "b", "c")
SERVER = "f"
TOKENS = (0, 100, 1_000, 8_000)
LONG_S = 2.0
AGAIN_S = 1.1
"""After so long everybody who waits is placed again."""
TURNS = 4
"""Iterations of the loop until the immediate effects of an event have happened."""
PATIENCE = 400
"""Seconds of a schedule's end."""


class Watched(Decisions):
    """Records every grant, and its end."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def granted(self, ticket: Ticket, decision: Decision) -> None:
        super().granted(ticket, decision)
        self._world.on_granted(ticket, decision)

    def ended(self, ticket_id: str, outcome: str) -> None:
        super().ended(ticket_id, outcome)
        del self._world.granted[ticket_id]


class World:
    """Callers, nodes, and all of the router that is between them."""

    def __init__(self, seed: int, clock: SetClock, metrics: Metrics) -> None:
        self.chance = Random(seed)
        self.clock = clock
        self.index = PrefixIndex(clock.time)
        self.fleet = Fleet(clock=clock.time)
        limits = AdmissionLimits(max_waiting=3, promote_after_s=5.0)
        self.scheduler = Scheduler(self.index, limits)
        self.decisions = Watched(self)
        # Its index is another one, since `self.index` is compared with what nodes have reported.
        predictions = Predictions(PrefixIndex(clock.time), metrics)
        self.placing = SchedulerDriver(
            self.scheduler, self.fleet, self.decisions, metrics, predictions, clock.time
        )
        self.agents = [PlayedAgent(name, self.chance) for name in AGENTS[: 1 + seed % 3]]
        self.server = PlayedServer(SERVER)
        self.reported: dict[tuple[str, str], Depths] = {}
        """The prefixes that a model of a node has cached, as far as the router has received
        them."""
        self.partly: set[tuple[str, str]] = set()
        """The models of nodes of which a snapshot is on its way."""
        self.tickets: dict[str, Ticket] = {}
        self.callers: dict[str, asyncio.Task[None]] = {}
        self.orders: set[asyncio.Task[None]] = set()
        self.granted: dict[str, str] = {}
        """The node of each ticket that has a lease."""
        self.grants = 0
        """So far."""
        self.running: dict[str, tuple[Lease, Fate]] = {}
        """The requests that nodes have begun."""
        self.failed: dict[str, dict[str, Failure]] = {}
        """The nodes that failed each ticket, and how."""
        self.ended: dict[str, str] = {}

    # --- one request, as the router serves it ---

    async def serve(self, ticket: Ticket) -> None:
        lease, outcome = None, "cancelled"
        try:
            lease = await self.placing.place(ticket)
            while (how := await self.attempt(ticket, lease)) is not None:
                failed, lease = lease, None
                self.decisions.ended(ticket.request_id, how)
                self.note_failure(ticket, failed, how)
                lease = await self.placing.place_again(ticket, failed, how)
            outcome = "answered"
        except RouterError:
            outcome = "rejected"
        finally:
            if lease is not None:
                self.close(lease, outcome)
            assert ticket.request_id not in self.ended
            self.ended[ticket.request_id] = outcome

    async def attempt(self, ticket: Ticket, lease: Lease) -> Failure | None:
        """Returns the failure of the lease's node; None if it served the ticket."""
        number = len(self.failed.get(ticket.request_id, ())) + 1
        assert lease.attempt <= MAX_ATTEMPTS and number <= lease.attempt
        view = self.fleet.node(lease.node_id)
        known_id = view.status.instance_id if view is not None and view.status else ""
        if known_id != lease.instance_id:
            return Failure.UNSENT
        node = self.server if lease.node_id == SERVER else self.agent(lease.node_id)
        if node.instance_id != lease.instance_id:
            return Failure.BROKEN
        fate: Fate = self.clock.create_future()
        try:
            return await node.serve(lease, fate, lambda: self.begin(lease, fate))
        except NodeError:
            return self.chance.choice((Failure.ERROR_RESPONSE, Failure.BUSY))
        finally:
            self.running.pop(ticket.request_id, None)

    def begin(self, lease: Lease, fate: Fate) -> None:
        self.running[lease.ticket_id] = lease, fate

    def note_failure(self, ticket: Ticket, lease: Lease, how: Failure) -> None:
        if how is not Failure.UNSENT:
            self.failed.setdefault(ticket.request_id, {})[lease.node_id] = how

    def close(self, lease: Lease, outcome: str) -> None:
        reports_usage = lease.node_id != SERVER
        served = outcome == "answered" and not reports_usage
        failed = outcome != "answered" and self.chance.random() < 0.2
        self.decisions.ended(lease.ticket_id, outcome)
        self.placing.on_done(lease, served=served, failed=failed)
        chain = self.tickets[lease.ticket_id].chain
        if served and chain is not None:
            self.index.on_served(lease.node_id, chain, lease.prompt_tokens)
        elif reports_usage and not failed and self.chance.random() < 0.8:
            usage = usage_record(lease, 1_000, self.chance.choice((0, 500)))
            bad = self.chance.random() < 0.1
            verdict = Verdict(lease, self.clock.now_s, failed=bad, usage=usage)
            self.placing.on_verdict(verdict, self.tickets[lease.ticket_id])

    def on_granted(self, ticket: Ticket, decision: Decision) -> None:
        """Counts only nodes that can serve it by their latest report, and nothing void."""
        assert ticket.request_id not in self.granted
        assert ticket.request_id not in self.ended
        self.granted[ticket.request_id] = decision.node_id
        self.grants += 1
        view, terms = self.fleet.node(decision.node_id), decision.chosen
        assert view is not None and view.reachable and ticket.model in view.model_names()
        assert view.state == ACTIVE
        assert ticket.pinned_node_id in ("", decision.node_id)
        failed = self.failed.get(ticket.request_id, {})
        assert failed.get(decision.node_id) not in (Failure.ERROR_RESPONSE, Failure.BUSY)
        assert terms is not None and ticket.chain is not None
        key = decision.node_id, ticket.model
        if decision.node_id != SERVER and key not in self.partly:
            depth = self.reported.get(key, {}).get(self.chain_name(ticket), 0)
            assert terms.cached_positions <= min(depth, len(ticket.chain))

    # --- what happens ---

    def requests(self) -> None:
        for _ in range(self.chance.choice((1, 1, 4))):
            self.request()

    def request(self) -> None:
        name, model = f"t{len(self.tickets)}", self.chance.choice(MODELS)
        made = a_ticket(
            name,
            model=model,
            stream=self.chance.random() < 0.7,
            arrived_s=self.clock.now_s,
            pinned_node_id=self.chance.choice((self.agents[0].record.id, "", "", "")),
            hints=Hints(self.chance.choice(("", "s1", "s2"))),
            priority=self.chance.choice(list(Priority)),
            deadline_s=self.clock.now_s + self.chance.choice((inf, inf, 4.0, 60.0)),
        )
        key, positions = self.chance.choice("pq"), max(1, self.chance.choice(TOKENS) // 100)
        made = msgspec.structs.replace(
            made,
            caller=Caller(key, key, frozenset({"inference"}), key),
            chain=chain_of(model, self.chance.choice(CHAINS), positions),
        )
        self.tickets[name] = made
        self.callers[name] = self.clock.create_task(self.serve(made))

    def leave(self) -> None:
        if open_ones := [name for name, task in self.callers.items() if not task.done()]:
            self.callers[self.chance.choice(open_ones)].cancel()

    def content(self) -> None:
        if self.running:
            lease, _ = self.chance.choice(list(self.running.values()))
            if self.tickets[lease.ticket_id].stream:
                self.placing.on_first_content(lease, 1.0)
            else:
                self.placing.on_prefilled(lease)

    def finish(self) -> None:
        self.decide(None)

    def fail(self) -> None:
        hows = Failure.BROKEN, Failure.ERROR_RESPONSE, Failure.BUSY
        self.decide(self.chance.choice(hows))

    def decide(self, how: Failure | None) -> None:
        """Sets the outcome of one of the requests that nodes have begun."""
        if self.running:
            lease, fate = self.chance.choice(list(self.running.values()))
            if not fate.done():
                fate.set_result(how)
                self.cache_prompt(lease)

    def cache_prompt(self, lease: Lease) -> None:
        """Its prompt is cached where it was served; then a part of it perhaps no more."""
        ticket = self.tickets[lease.ticket_id]
        if lease.node_id != SERVER and ticket.chain is not None:
            depth = self.chance.choice((len(ticket.chain), MAX_POSITIONS, 1, 0))
            self.agent(lease.node_id).set_depth(ticket.model, self.chain_name(ticket), depth)

    def others(self) -> None:
        """The cache of a node changes by what this router has not sent there."""
        agent, model = self.chance.choice(self.agents), self.chance.choice(MODELS)
        for _ in range(self.chance.choice((1, 3))):
            agent.set_depth(
                model, self.chance.choice(CHAINS), self.chance.randint(0, MAX_POSITIONS)
            )

    async def change_node(self) -> None:
        agent = self.chance.choice(self.agents)
        what = self.chance.randrange(7)
        if what == 0:
            await self.restart(agent)
        elif what == 1:
            self.lose_stream(agent)
        elif what == 2:
            self.agent_with_most_events().lose()
        elif what == 3 and agent.record.id in self.known():
            self.remove(agent)
        elif what < 6:
            self.order_unload(agent)
        self.receive(agent, self.chance.choice((0, 1, 99)))

    async def restart(self, agent: PlayedAgent) -> None:
        await agent.die()
        if self.chance.random() < 0.7:  # else the router does not know yet
            self.lose_stream(agent)
        await agent.start()

    def lose_stream(self, agent: PlayedAgent) -> None:
        agent.is_followed = False
        agent.events.clear()
        self.forget(agent.record.id)
        self.fleet.lost(agent.record.id, "It is gone.")

    def remove(self, agent: PlayedAgent) -> None:
        agent.is_followed = False
        self.fleet.remove(agent.record.id)
        self.forget(agent.record.id)
        self.placing.on_node_removed(agent.record.id)

    def order_unload(self, agent: PlayedAgent) -> None:
        """Unloads a model as an admin orders it, perhaps while requests are on their way."""
        model = self.chance.choice(MODELS)
        core = cast(Core, SimpleNamespace(fleet=self.fleet))
        with contextlib.suppress(RouterError):
            chosen_node(core, model, agent.record.name)
            self.orders.add(self.clock.create_task(self.unload(agent, model)))

    async def unload(self, agent: PlayedAgent, model: str) -> None:
        if not agent.is_alive or model not in agent.entries:
            return
        supervisor, is_busy = agent.supervisor, agent.rows(model) > 0
        try:
            await supervisor.unload(agent.entries[model])
        except ModelBusy as refusal:
            assert is_busy or "being loaded" in refusal.message
        else:
            assert not is_busy or agent.supervisor is not supervisor

    # --- what the router receives ---

    def listen(self) -> None:
        self.receive(self.chance.choice(self.agents), self.chance.choice((1, 3, 99)))

    def receive(self, agent: PlayedAgent, count: int = 99) -> None:
        """Some of the events of an agent; of one that is lost or new, from the beginning."""
        if agent.record.id not in self.known():
            self.fleet.add(agent.record)
        if not agent.is_followed:
            self.forget(agent.record.id)
            agent.follow()
        while agent.events and count:
            count -= 1
            if not self.take(agent, agent.events.popleft()):
                assert agent.is_lossy
                self.forget(agent.record.id)
                agent.follow()
        self.check_index(agent)

    def take(self, agent: PlayedAgent, streamed: StreamedEvent) -> bool:
        """Applies an event; returns True if nothing before it is missing."""
        node_id, event, whole = agent.record.id, streamed.event, True
        if isinstance(event, StatusEvent):
            view = self.fleet.node(node_id)
            if view is None or not view.status or view.status.instance_id != agent.instance_id:
                self.forget(node_id)
            self.fleet.on_status(node_id, event.status)
            return True
        if isinstance(event, PrefixDelta):
            whole = self.index.on_delta(node_id, event)
        elif isinstance(event, PrefixSnapshot):
            whole = self.index.on_snapshot(node_id, event)
        elif isinstance(event, PrefixGone):
            self.index.on_gone(node_id, event)
        if whole and not streamed.is_late:
            assert isinstance(event, PrefixDelta | PrefixSnapshot | PrefixGone)
            self.note(node_id, event.model, streamed)
        return whole

    def note(self, node_id: str, model: str, streamed: StreamedEvent) -> None:
        self.partly.discard((node_id, model))
        if streamed.depths is not None:
            self.reported[node_id, model] = streamed.depths
        else:
            self.partly.add((node_id, model))

    def forget(self, node_id: str) -> None:
        self.index.forget_node(node_id)
        for model in MODELS:
            self.reported.pop((node_id, model), None)
            self.partly.discard((node_id, model))

    async def pass_time(self) -> None:
        step_s = self.chance.choice((0.001, 0.3, LONG_S, 40.0, 1e5, -3.0))
        self.clock.now_s = max(0.0, self.clock.now_s + step_s)
        await turns(self.chance.randrange(TURNS))
        if step_s >= LONG_S:
            await self.until_nothing_is_granted()
            self.check_nobody_waits_for_nothing()

    async def until_nothing_is_granted(self) -> None:
        """Everybody is placed again, until nobody who waits can begin: a grant changes the prices
        of those after it, which stay valid for a while."""
        before = -1
        while before != self.grants:
            before = self.grants
            self.clock.now_s += AGAIN_S
            await turns(TURNS)

    # --- what must hold ---

    def check(self) -> None:
        assert not self.clock.faults
        leased = Counter(self.granted.values())
        assert open_leases(self.placing.traffic) == leased.total()
        for node_id in (*AGENTS, SERVER):
            assert self.placing.traffic.in_flight(node_id) == leased[node_id]
        waiting = sum(count for _, count in self.placing.traffic.queue_lengths())
        assert len(self.scheduler._admission) == waiting
        assert (self.scheduler.wake_s() is None) == (not waiting)

    def check_index(self, agent: PlayedAgent) -> None:
        """The index is what its node has reported, and nothing of another epoch."""
        for model in MODELS:
            key = agent.record.id, model
            for name in CHAINS:
                reported = self.reported.get(key, {}).get(name, 0)
                found = self.index.coverage(agent.record.id, chain_of(model, name))
                if key not in self.partly:
                    assert found.positions == reported
                assert found.usable_tokens == 100 * found.positions

    def check_nobody_waits_for_nothing(self) -> None:
        """Nobody waits whose best node can begin, nor where all that could serve it are idle."""
        for name in self.tickets:
            standing = self.placing.traffic.queued(name)
            if standing is None or self.callers[name].cancelling():
                continue
            assert standing.position >= 1 and 0.0 <= standing.wait_s < inf
            terms, best = self.costs(name)
            model = self.tickets[name].model
            if best is not None and not self.waits_for_room(best.node_id, model):
                is_full = self.placing.traffic.in_flight(best.node_id) >= ROWS
                assert is_full or best.queue_s > MAX_AHEAD_S
            able = [each.node_id for each in terms if not each.excluded]
            assert any(
                self.placing.traffic.in_flight(each) or self.waits_for_room(each, model)
                for each in able
            )

    def waits_for_room(self, node_id: str, model: str) -> bool:
        """Returns True if another model has to leave the node first, and may not yet."""
        view, book = self.fleet.node(node_id), self.scheduler._books.known(node_id)
        if view is None or view.status is None or book is None:
            return False
        status = next(each for each in view.status.models if each.name == model)
        claimed = displacement(book, view.status, status, self.clock.now_s)
        return model in book.closed or not claimed.can_unload(self.clock.now_s)

    def costs(self, ticket_id: str) -> tuple[tuple[NodeTerms, ...], NodeTerms | None]:
        """Returns the terms of a ticket that waits, by what was known of it at arrival; and those
        of its best node."""
        estimate = self.scheduler._admission._queue._tickets[ticket_id].estimate
        moment = Moment(self.clock.now_s, self.fleet.snapshot)
        choice = self.scheduler._placement.decide(estimate, moment, {})
        return choice.terms, choice.chosen if choice.index >= 0 else None

    # --- beginning and end ---

    async def begin_all(self) -> None:
        for agent in self.agents:
            await agent.start()
            if self.chance.random() < 0.7:
                await agent.load()
            self.receive(agent)
        self.fleet.add(self.server.record)
        models = self.chance.choice(((), MODELS[:1], MODELS))
        self.fleet.on_status(SERVER, foreign_status(self.server.record, list(models)))

    def cordon(self) -> None:
        """An admin wants a node to take no more requests, or some again."""
        node_id = self.chance.choice(self.agents).record.id
        self.fleet.set_state(node_id, self.chance.choice((CORDONED, ACTIVE, ACTIVE)))

    def uncordon_all(self) -> None:
        for agent in self.agents:
            self.fleet.set_state(agent.record.id, ACTIVE)

    async def drain(self) -> None:
        """All nodes are well, what runs ends, and time passes: then nothing may wait."""
        self.uncordon_all()
        for _ in range(PATIENCE):
            for agent in self.agents:
                self.receive(agent)
            for _, fate in list(self.running.values()):
                if not fate.done():
                    fate.set_result(None)
            await asyncio.sleep(1.0)
            self.check()
            if all(task.done() for task in (*self.callers.values(), *self.orders)):
                break
        for task in (*self.callers.values(), *self.orders):
            with contextlib.suppress(asyncio.CancelledError):
                task.result()
        for agent in self.agents:
            await agent.die()

    def chain_name(self, ticket: Ticket) -> int:
        assert ticket.chain is not None
        first = ticket.chain.hashes[0]
        return next(name for name in CHAINS if chain_of(ticket.model, name).hashes[0] == first)

    def agent(self, node_id: str) -> PlayedAgent:
        return next(agent for agent in self.agents if agent.record.id == node_id)

    def agent_with_most_events(self) -> PlayedAgent:
        return max(self.agents, key=lambda agent: len(agent.events))

    def known(self) -> dict[str, NodeView]:
        return {view.node_id: view for view in self.fleet.snapshot}


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


EVENTS = (
    (World.requests, 8),
    (World.content, 4),
    (World.finish, 4),
    (World.fail, 2),
    (World.leave, 1),
    (World.change_node, 5),
    (World.others, 3),
    (World.listen, 3),
    (World.cordon, 1),
    (World.pass_time, 4),
)


async def play(seed: int, clock: SetClock, metrics: Metrics) -> None:
    clock.now_s = 0.0
    world = World(seed, clock, metrics)
    await world.begin_all()
    happenings = [event for event, _ in EVENTS]
    weights = [weight for _, weight in EVENTS]
    for happening in world.chance.choices(happenings, weights, k=STEPS):
        done = happening(world)
        if done is not None:
            await done
        await turns(world.chance.randrange(TURNS))
        world.check()
    await world.drain()
    world.check()
    assert world.ended.keys() <= world.tickets.keys()
    assert all(name in world.ended or world.callers[name].cancelled() for name in world.tickets)
    assert len(world.scheduler._admission) == open_leases(world.placing.traffic) == 0
    assert world.scheduler.wake_s() is None


@pytest.fixture
def played_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines_module, "EngineLink", PlayedLink)
    logging.disable(logging.ERROR)
    gc.freeze()  # what is there already is much, and nothing of it is ever garbage
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("played_engines")
@pytest.mark.parametrize("first", range(FIRST, SCHEDULES, SHARD))
def test_every_ticket_ends_once_and_nothing_is_left_behind(first: int) -> None:
    metrics = Metrics(str)
    with asyncio.Runner(loop_factory=SetClock) as runner:
        for seed in range(first, first + SHARD):
            try:
                runner.run(play(seed, cast(SetClock, runner.get_loop()), metrics))
            except Exception as error:
                raise AssertionError(f"schedule {seed}") from error
