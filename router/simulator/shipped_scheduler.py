"""Runs the shipped scheduler on simulated nodes, with the reports that real nodes would send."""

import random
from array import array
from collections import Counter
from collections.abc import Sequence

from node.protocol.chain.prefix import Chain
from node.protocol.messages import (
    PROTOCOL_VERSION,
    CacheStatus,
    Finished,
    FinishReason,
    ModelState,
    ModelStatus,
    NodeStatus,
)
from node.protocol.paths import PATH_CHAT
from router.coverage import NOT_COVERED, Coverage
from router.scheduler.scheduler import Scheduler
from router.simulator.node import FirstToken, Job, JobBegan, JobEnded, JobEvent, Node
from router.simulator.policies import Dispatch, Move, Retry
from router.simulator.workload import SimulatedCall
from router.states import SCOPE_EXTERNAL
from router.types import (
    Action,
    Caller,
    Grant,
    Hints,
    Lease,
    Moment,
    NodeView,
    Reject,
    Ticket,
    Verdict,
)

BYTES_PER_TOKEN = 4
"""Bytes of a prompt's text per token."""
STORED_BYTES_PER_TOKEN = 150_000
CONTEXT_TOKENS = 1 << 20
_CALLER = Caller("simulated", "simulated", frozenset({"inference", SCOPE_EXTERNAL}), "simulated")


class _NodeCaches:
    """The nodes' caches, with every change known at once. Implements `Prefixes`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node_id(node): node for node in nodes}
        self._calls: dict[int, SimulatedCall] = {}
        """Calls by the head of their chain."""

    def chain(self, call: SimulatedCall) -> Chain:
        self._calls[call.path[-1]] = call
        sizes = array("I", [end * BYTES_PER_TOKEN for end in call.ends])
        return Chain(array("Q", call.path), sizes, array("I", [len(call.path)]), 0)

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        node, call = self._nodes[node_id], self._calls[chain.head]
        reach = node.usable(call)
        if not reach.positions:
            return NOT_COVERED
        return Coverage(reach.positions, reach.tokens, reach.memory_tokens)


def node_id(node: Node) -> str:
    return f"node-{node.number:02}"


class ShippedScheduler:
    """A policy that drives the scheduler in virtual time."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._nodes = nodes
        self._caches = _NodeCaches(nodes)
        self._scheduler = Scheduler(self._caches)
        self._numbers = {node_id(node): node.number for node in nodes}
        self._jobs: dict[str, Job] = {}
        """Jobs by request id, from arrival to end."""
        self._leases: dict[int, Lease] = {}
        """Leases by the number of the call."""
        self._active: Counter[tuple[int, str]] = Counter()
        """Number of requests by node and model."""
        self._finished = 0
        self._views: dict[int, tuple[int, NodeView]] = {}
        """By node, the last view and the node's version that it shows."""

    def on_arrival(self, job: Job, now_s: float) -> list[Move]:
        call = job.call
        ticket = Ticket(
            request_id=str(call.number),
            caller=_CALLER,
            path=PATH_CHAT,
            requested_model=call.model,
            model=call.model,
            stream=True,
            arrived_s=now_s,
            body=b"",
            chain=self._caches.chain(call),
            hints=Hints(session=call.session),
        )
        self._jobs[ticket.request_id] = job
        return self._moves(self._scheduler.on_request(ticket, self._moment(now_s)))

    def on_event(self, event: JobEvent, now_s: float) -> list[Move]:
        match event:
            case JobBegan():
                return []
            case FirstToken(job):
                lease = self._leases[job.call.number]
                moment = self._moment(now_s)
                return self._moves(self._scheduler.on_first_content(lease, moment))
            case JobEnded(job):
                return self._end(job, now_s)

    def _end(self, job: Job, now_s: float) -> list[Move]:
        lease = self._leases.pop(job.call.number)
        del self._jobs[lease.ticket_id]
        self._active[job.node, job.call.model] -= 1
        moment = self._moment(now_s)
        actions = self._scheduler.on_done(lease, moment, served=False)
        self._finished += 1
        usage = Finished(
            seq=self._finished,
            request_id=lease.ticket_id,
            origin="",
            model=job.call.model,
            prompt_tokens=job.call.prompt_tokens,
            cached_tokens=job.cached_tokens,
            completion_tokens=job.call.output_tokens,
            reasoning_tokens=0,
            queue_s=job.began_s - job.sent_s,
            ttft_s=job.first_s - job.sent_s,
            prefill_s=job.prefill_s,
            decode_s=job.ended_s - job.first_s,
            reason=FinishReason.STOP,
            finished_unix_s=now_s,
        )
        self._scheduler.on_verdict(Verdict(lease, now_s, failed=False, usage=usage))
        return self._moves(actions)

    def on_time(self, now_s: float) -> list[Move]:
        return self._moves(self._scheduler.on_time(self._moment(now_s)))

    def wake_s(self) -> float | None:
        return self._scheduler.wake_s()

    def _moves(self, actions: list[Action]) -> list[Move]:
        moves: list[Move] = []
        for action in actions:
            if isinstance(action, Grant):
                job = self._jobs[action.lease.ticket_id]
                self._leases[job.call.number] = action.lease
                number = self._numbers[action.lease.node_id]
                self._active[number, job.call.model] += 1
                moves.append(Dispatch(job, number))
            elif isinstance(action, Reject):
                job = self._jobs.pop(action.ticket_id)
                assert action.retry_after_s is not None, "a fleet that never takes a model"
                moves.append(Retry(job, float(action.retry_after_s)))
        return moves

    def _moment(self, now_s: float) -> Moment:
        return Moment(now_s, tuple(self._view(node, now_s) for node in self._nodes))

    def _view(self, node: Node, now_s: float) -> NodeView:
        known = self._views.get(node.number)
        if known is not None and known[0] == node.version:
            return known[1]
        name = node_id(node)
        status = NodeStatus(
            protocol=PROTOCOL_VERSION,
            node_id=name,
            instance_id=name,
            version="simulated",
            engine="simulated",
            chip=node.spec.chip or "simulated",
            memory_budget_bytes=node.spec.model_bytes * node.spec.resident_models,
            memory_leased_bytes=node.spec.model_bytes * len(node.ready_s),
            min_residency_s=node.spec.min_residency_s,
            max_swap_wait_s=node.spec.max_swap_wait_s,
            models=tuple(
                _model_status(node, model, self._active[node.number, model], now_s)
                for model in node.models
            ),
        )
        view = NodeView(
            node_id=name,
            name=node.spec.name,
            kind="agent",
            url="",
            status=status,
            reachable=True,
            error=None,
            status_at_s=now_s,
        )
        if max(node.ready_s.values()) <= now_s:
            self._views[node.number] = (node.version, view)
        return view


def _model_status(node: Node, model: str, active: int, now_s: float) -> ModelStatus:
    spec = node.spec
    ready_s = node.ready_s.get(model)
    state = ModelState.ON_DISK
    if ready_s is not None:
        state = ModelState.READY if ready_s <= now_s else ModelState.LOADING
    cache = None
    if ready_s is not None:
        model_cache = node.cache(model)
        cache = CacheStatus(
            memory_bytes=spec.cache_tokens * STORED_BYTES_PER_TOKEN,
            memory_used_bytes=model_cache.memory_used * STORED_BYTES_PER_TOKEN,
            bytes_per_token=STORED_BYTES_PER_TOKEN,
            disk_bytes=spec.disk_tokens * STORED_BYTES_PER_TOKEN,
            disk_used_bytes=model_cache.disk_used * STORED_BYTES_PER_TOKEN,
            snapshot_only=spec.snapshot_only,
            slots=spec.cache_slots,
            slots_used=model_cache.leaves,
        )
    return ModelStatus(
        name=model,
        state=state,
        weight_bytes=spec.model_bytes,
        context_tokens=CONTEXT_TOKENS,
        active_requests=active,
        max_rows=spec.max_rows,
        cache=cache,
    )
