"""Nodes for schedules of all that places a request, in a time that a test sets: the supervisor of
an agent as it is, over engines that are played."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from node.app import ScriptedStore
from node.engines.cache_events import CacheWatch
from node.engines.memory_budget import Budget
from node.engines.processes import Hooks
from node.engines.residency_policy import ResidencyPolicy
from node.engines.slot import EngineKind
from node.engines.supervisor import Supervisor
from node.errors import LoadFailure, NodeError
from node.hardware import Machine
from node.ipc.messages import EngineSpec, EngineStats, Loaded, MemoryLease
from node.models.formats import ModelFormats
from node.models.store import ModelEntry
from node.protocol.chain.prefix import Chain
from node.protocol.messages import (
    PROTOCOL_VERSION,
    Event,
    NodeStatus,
    PrefixDelta,
    PrefixGone,
    PrefixSnapshot,
    StatusEvent,
)
from node.protocol.prefixes import Entry, Tier, pack_entries, pack_hashes
from node.settings import Settings
from router.types import Failure, Lease
from serving.units import GIB
from tests.router.conftest import node_record
from tests.router.scheduler import fleet as hand_made

MODELS = ("m", "x")
MAX_POSITIONS = 80
CHAINS = (1, 2, 3)
ROWS = 4
STOP_S = 0.1
ENTRIES = {
    name: ModelEntry(name, Path(), GIB, 10**6, kv_bytes_per_token=100_000) for name in MODELS
}
SETTINGS = Settings(
    home=Path("/nowhere"),
    engine="scripted",
    max_rows=ROWS,
    min_residency_s=2.0,
    max_swap_wait_s=20.0,
)
Fate = asyncio.Future[Failure | None]
Depths = dict[int, int]
"""The number of cached positions of each chain."""


@cache
def chain_of(model: str, name: int, positions: int = MAX_POSITIONS) -> Chain:
    """No two models have a hash in common."""
    return hand_made.chain(name + 10 * MODELS.index(model), positions)


class SetClock(asyncio.SelectorEventLoop):
    """A loop whose time the test sets; where all wait for a time, it is that time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.faults: list[dict[str, Any]] = []
        """Errors of tasks that nobody waits for."""
        super().__init__(_Selector(self))
        self.set_exception_handler(lambda _loop, fault: self.faults.append(fault))

    def time(self) -> float:
        return self.now_s

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Any, *given: Any
    ) -> Any:
        """At once."""
        future = self.create_future()
        future.set_result(function(*given))
        return future


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: SetClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait, and for no time"
        self._clock.now_s += timeout
        return super().select(0)


class PlayedLink:
    """An engine process, as its supervisor sees it. It must not end while it serves."""

    def __init__(self, *, on_loaded: Any, **_: Any) -> None:
        self.rows: set[str] = set()
        self.alive = True
        self.work_tokens = self.prefilled_tokens = self.decoded_tokens = 0
        self.stats: EngineStats | None = None
        self._on_loaded = on_loaded

    @property
    def open_rows(self) -> int:
        return len(self.rows)

    async def start(self, spec: EngineSpec, _waiting: object = None) -> Loaded:
        load_s = float(spec.script_json)
        if load_s < 0:
            raise LoadFailure("The engine fails.")
        await asyncio.sleep(load_s)
        info = Loaded(GIB, 10**6, ROWS, 1, stored_bytes_per_token=100_000)
        self._on_loaded(info)
        return info

    async def set_lease(self, _lease: MemoryLease) -> None:
        """Keeps within it at once."""

    async def stop(self, _grace_s: float) -> int:
        assert not self.rows, "a model was unloaded while it served"
        await asyncio.sleep(STOP_S)
        return 0


@dataclass
class _Cached:
    """The contents of the prefix cache of one engine, as its agent reports them."""

    epoch: int
    seq: int = 0
    depths: Depths = field(default_factory=dict)


@dataclass(frozen=True)
class StreamedEvent:
    """An event, and what its model has cached once that is received; None if still incomplete."""

    event: Event
    depths: Depths | None = None
    is_late: bool = False
    """True if it is of an engine that has ended."""


class PlayedServer:
    """A foreign server."""

    def __init__(self, node_id: str) -> None:
        self.record = node_record(f"http://{node_id}", node_id, "openai", node_id=node_id)
        self.record = replace(self.record, max_rows=ROWS)
        self.instance_id = "foreign"

    async def serve(self, _lease: Lease, fate: Fate, begun: Callable[[], None]) -> Failure | None:
        begun()
        return await fate


class PlayedAgent(CacheWatch):
    """A node agent and its event stream."""

    def __init__(self, node_id: str, chance: Random) -> None:
        self.record = node_record(f"http://{node_id}", node_id, node_id=node_id)
        self.chance = chance
        self.events: deque[StreamedEvent] = deque()
        self.is_alive = self.is_followed = False
        self.is_lossy = False
        """True if something of the stream was lost."""
        self.caches: dict[str, _Cached] = {}
        self._instance = self._epoch = 0
        self._fates: set[Fate] = set()

    @property
    def instance_id(self) -> str:
        return f"{self.record.id}{self._instance}"

    # --- lifecycle ---

    async def start(self) -> None:
        """Another instance."""
        self._instance += 1
        load_s = self.chance.choice((0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 5.0, -1.0))
        self.entries = self.chance.choice((ENTRIES, ENTRIES, {"m": ENTRIES["m"]}))
        store = ScriptedStore(tuple(self.entries.values()), ModelFormats())
        kind = EngineKind(SETTINGS, Machine("x", 64 * GIB), str(load_s))
        budget = Budget(self.chance.choice((5, 8, 64)) * GIB)
        residency, hooks = ResidencyPolicy(SETTINGS), Hooks(self._on_change, watch=self)
        clock = asyncio.get_running_loop().time
        self.supervisor = Supervisor(store, budget, kind, residency, hooks, clock)
        await self.supervisor.refresh()
        self.is_alive = True

    async def load(self) -> None:
        """A model, if it can."""
        entry = self.chance.choice(list(self.entries.values()))
        with contextlib.suppress(NodeError), self.supervisor.serving(entry) as resident:
            await resident.ready()

    async def die(self) -> None:
        """Ends the agent as kill -9 does."""
        self.is_alive = self.is_followed = False
        self.events.clear()
        for fate in tuple(self._fates):
            if not fate.done():
                fate.set_result(Failure.BROKEN)
        for engine in self.supervisor.engines().values():
            self.link(engine.handle.link).rows.clear()
        await self.supervisor.close(0.0)
        self.caches.clear()

    # --- serving ---

    async def serve(self, lease: Lease, fate: Fate, begun: Callable[[], None]) -> Failure | None:
        """Serves the lease until its fate is set, and returns that. Raises `NodeError`."""
        entry = self.entries[lease.model]
        self._fates.add(fate)
        try:
            with self.supervisor.serving(entry) as resident:
                link = self.link((await resident.ready()).link)
                link.rows.add(lease.node_request_id)
                begun()
                try:
                    return await fate
                finally:
                    link.rows.discard(lease.node_request_id)
        finally:
            self._fates.discard(fate)

    def rows(self, model: str) -> int:
        engine = self.supervisor.engines().get(model)
        return engine.handle.link.open_rows if engine else 0

    def link(self, link: Any) -> PlayedLink:
        assert isinstance(link, PlayedLink)
        return link

    # --- reporting ---

    def status(self) -> NodeStatus:
        budget = self.supervisor.budget
        return NodeStatus(
            protocol=PROTOCOL_VERSION,
            node_id=self.record.id,
            instance_id=self.instance_id,
            version="0",
            engine="text",
            chip="M4",
            memory_budget_bytes=budget.total_bytes,
            memory_leased_bytes=budget.leased_bytes,
            models=self.supervisor.status(),
            min_residency_s=SETTINGS.min_residency_s,
            max_swap_wait_s=SETTINGS.max_swap_wait_s,
        )

    def follow(self) -> None:
        """A new event stream, from its beginning."""
        self.is_followed, self.is_lossy = True, False
        self.events = deque([StreamedEvent(StatusEvent(self.status()))])
        for model, contents in self.caches.items():
            self.events += self._snapshot(model, contents)

    def set_depth(self, model: str, name: int, depth: int) -> None:
        """The engine's cache has grown, or lost what was at the end."""
        contents = self.caches.get(model)
        if contents is None:
            return
        hashes, before = chain_of(model, name).hashes, contents.depths.get(name, 0)
        contents.depths[name] = depth
        contents.seq += 1
        changed = [_entry(hashes, position) for position in range(before, depth)]
        delta = PrefixDelta(
            model,
            contents.epoch,
            contents.seq,
            pack_entries(changed),
            pack_hashes(hashes[depth:before]),
        )
        self._emit(StreamedEvent(delta, dict(contents.depths)))

    def lose(self) -> None:
        """A change does not arrive."""
        changes = [each for each in self.events if isinstance(each.event, PrefixDelta)]
        if changes:
            self.events.remove(self.chance.choice(changes))
            self.is_lossy = True

    def on_loaded(self, entry: ModelEntry, info: Loaded) -> None:
        self._epoch += 1
        self.caches[entry.name] = _Cached(self._epoch)

    def on_ended(self, model: str) -> None:
        contents = self.caches.pop(model, None)
        if contents is None:
            return
        self._emit(StreamedEvent(PrefixGone(model, contents.epoch), {}))
        if self.chance.random() < 0.5:  # a late event of the engine that has ended
            entries = pack_entries([_entry(chain_of(model, CHAINS[0]).hashes, 0)])
            delta = PrefixDelta(model, contents.epoch, contents.seq + 1, entries, b"")
            snapshot = PrefixSnapshot(model, contents.epoch, contents.seq, 0, 1, entries)
            self._emit(StreamedEvent(delta, is_late=True))
            self._emit(StreamedEvent(snapshot, is_late=True))

    def _on_change(self) -> None:
        if self.is_followed:
            self._emit(StreamedEvent(StatusEvent(self.status())))

    def _emit(self, event: StreamedEvent) -> None:
        if self.is_followed:
            self.events.append(event)

    def _snapshot(self, model: str, contents: _Cached) -> Iterator[StreamedEvent]:
        entries = [
            _entry(chain_of(model, name).hashes, position)
            for name, depth in contents.depths.items()
            for position in range(depth)
        ]
        size = self.chance.choice((7, 50, 4096))
        parts = [entries[begin : begin + size] for begin in range(0, len(entries), size)] or [[]]
        for part, each in enumerate(parts):
            piece = PrefixSnapshot(
                model, contents.epoch, contents.seq, part, len(parts), pack_entries(each)
            )
            is_whole = part + 1 == len(parts)
            yield StreamedEvent(piece, dict(contents.depths) if is_whole else None)


def _entry(hashes: Any, position: int) -> Entry:
    return Entry(hashes[position], 100 * (position + 1), Tier.MEMORY)
