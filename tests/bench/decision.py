"""Measures one decision with 16 nodes that have much cached, and a chain of 600 positions."""

import time
from array import array
from collections.abc import Iterator
from random import Random

from node.protocol.chain.prefix import Chain
from node.protocol.messages import (
    PROTOCOL_VERSION,
    CacheStatus,
    ModelState,
    ModelStatus,
    NodeStatus,
    PrefixSnapshot,
)
from node.protocol.prefixes import MAX_ENTRIES, Entry, Tier, pack_entries
from router.fleet.prefix_index import PrefixIndex
from router.scheduler.scheduler import Scheduler
from router.types import Caller, Grant, Hints, Lease, Moment, NodeView, Ticket, Verdict
from tests.bench.figures import Figure, median

NODES, SESSIONS, POSITIONS = 16, 32, 600
TOKENS_PER_POSITION = 256
CACHED_POSITIONS = POSITIONS - 4
"""All but the latest turn."""
BAR_MS = 0.5
MODEL = "m"


def measure(*, quick: bool) -> Iterator[Figure]:
    """An idle fleet, and one that works and has requests waiting."""
    rounds = 200 if quick else 2000
    index, chains = _filled_index()
    scheduler, moment = Scheduler(index), Moment(1000.0, tuple(map(_view, range(NODES))))
    for number, chain in enumerate(chains):
        _serve(scheduler, moment, _ticket(f"warm{number}", chain))
    note = f"{NODES} nodes with {SESSIONS} sessions each, {POSITIONS} positions; median"
    samples = []
    for number in range(rounds):
        ticket = _ticket(f"{number}", chains[number % len(chains)])
        began_s = time.perf_counter()
        (action,) = scheduler.on_request(ticket, moment)
        samples.append((time.perf_counter() - began_s) * 1e3)
        assert isinstance(action, Grant)
        scheduler.on_done(action.lease, moment, served=False)
    yield Figure("decision, idle fleet", median(samples), "ms", BAR_MS, note=note)
    leases = [action.lease for action in _overload(scheduler, moment, chains)]
    samples.clear()
    for number in range(rounds // 10):
        lease = leases.pop(0)
        began_s = time.perf_counter()
        actions = scheduler.on_done(lease, moment, served=False)
        samples.append((time.perf_counter() - began_s) * 1e3)
        leases += [action.lease for action in actions if isinstance(action, Grant)]
        more = scheduler.on_request(_cold(f"more{number}"), moment)
        leases += [action.lease for action in more if isinstance(action, Grant)]
    note = f"a node becomes free while {len(scheduler._admission)} cold requests wait; median"
    yield Figure("decision, from the queue", median(samples), "ms", note=note)


def _overload(scheduler: Scheduler, moment: Moment, chains: list[Chain]) -> list[Grant]:
    actions = []
    for number in range(NODES + 100):
        actions += scheduler.on_request(_cold(f"cold{number}"), moment)
    return [action for action in actions if isinstance(action, Grant)]


def _cold(name: str) -> Ticket:
    return _ticket(name, _chain(Random(name)))


def _serve(scheduler: Scheduler, moment: Moment, ticket: Ticket) -> None:
    (action,) = scheduler.on_request(ticket, moment)
    assert isinstance(action, Grant)
    lease: Lease = action.lease
    scheduler.on_done(lease, moment, served=False)
    scheduler.on_verdict(Verdict(lease, moment.now_s, failed=False))


def _filled_index() -> tuple[PrefixIndex, list[Chain]]:
    index, chains, chance = PrefixIndex(), [], Random(1)
    for node in range(NODES):
        entries = []
        for _ in range(SESSIONS):
            chain = _chain(chance)
            chains.append(chain)
            entries += [
                Entry(each, (number + 1) * TOKENS_PER_POSITION, Tier.MEMORY)
                for number, each in enumerate(chain.hashes[:CACHED_POSITIONS])
            ]
        pieces = [entries[at : at + MAX_ENTRIES] for at in range(0, len(entries), MAX_ENTRIES)]
        for part, piece in enumerate(pieces):
            packed = pack_entries(piece)
            index.on_snapshot(f"n{node}", PrefixSnapshot(MODEL, 1, 0, part, len(pieces), packed))
    return index, chains


def _chain(chance: Random) -> Chain:
    hashes = array("Q", [chance.getrandbits(64) for _ in range(POSITIONS)])
    sizes = array("I", [1024 * (number + 1) for number in range(POSITIONS)])
    return Chain(hashes, sizes, array("I", range(4, POSITIONS + 1, 4)), 4)


def _ticket(name: str, chain: Chain) -> Ticket:
    caller = Caller("key", "bench", frozenset({"inference"}), "bench")
    return Ticket(
        request_id=name,
        caller=caller,
        path="/v1/chat/completions",
        requested_model=MODEL,
        model=MODEL,
        stream=True,
        arrived_s=1000.0,
        body=b"",
        chain=chain,
        hints=Hints(session=f"{chain.head:x}"),
    )


def _view(number: int) -> NodeView:
    cache = CacheStatus(60_000 * SESSIONS, 50_000 * SESSIONS, 1)
    model = ModelStatus(MODEL, ModelState.READY, 4 * 10**9, max_rows=16, cache=cache)
    status = NodeStatus(
        protocol=PROTOCOL_VERSION,
        node_id=f"n{number}",
        instance_id="i",
        version="",
        engine="",
        chip="Apple M4 Pro",
        memory_budget_bytes=0,
        memory_leased_bytes=0,
        models=(model,),
    )
    return NodeView(f"n{number}", f"n{number}", "agent", "", status, True, None, 1.0)
