"""The node agent: wires a node's models, requests and events, and reports its state."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from node.agent.disk import Disk
from node.agent.live_parts import LiveParts
from node.agent.metrics import NodeMetrics
from node.agent.own_macs import OwnMacs
from node.agent.prefixes import PrefixFeed
from node.agent.pressure_watch import watch_pressure
from node.agent.requests import CallSettings, Requests
from node.agent.spans import hub_of
from node.agent.status_bounds import ModelFilter
from node.agent.status_report import node_report, reported_pressure
from node.agent.warm_prompts import WarmPlan, WarmReport
from node.agent.warming import Warming
from node.agent.watchdog import Watchdog
from node.engines.memory_budget import Budget
from node.engines.processes import Hooks
from node.engines.residency_policy import ResidencyPolicy
from node.engines.slot import EngineKind
from node.engines.supervisor import Supervisor
from node.errors import ContextTooLong, EngineDied, EngineUnresponsive, StartError
from node.ipc.messages import WITHOUT_MLX, Marked
from node.models.store import ModelEntry, ModelStore
from node.prompt.prompt import RenderRequest
from node.prompt.renderers import Renderers
from node.protocol.chain.prefix import Head
from node.protocol.lifecycle import ClearedCache, Policies
from node.protocol.messages import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    CancelMarked,
    Event,
    ModelState,
    ModelStatus,
    NodeStatus,
    StatusEvent,
    Stored,
)
from node.protocol.models import ModelCard
from node.request import TextRequest
from node.settings import Settings, named_models
from serving.awake import Awake
from serving.installer import own_installer
from serving.sleep_watch import watch_sleep
from serving.tracing.spans import Tracing

REFRESH_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """The agent's description of itself for routers."""

    node_id: str
    version: str
    chip: str


class Agent:
    """One node: its models, its requests, its events."""

    def __init__(
        self,
        identity: Identity,
        store: ModelStore,
        budget: Budget,
        kind: EngineKind,
        warm: WarmPlan | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.identity = identity
        self.instance_id = secrets.token_hex(8)
        self._kind = kind
        self._tracing = tracing
        self._hub = hub_of(tracing)
        self._prefixes = PrefixFeed(self._hub, identity.version)
        self._renderers = Renderers(
            models=self._count_models,
            loaded=lambda: len(self._supervisor.engines()),
        )
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._ending = False
        self.residency = ResidencyPolicy(kind.settings)
        self.awake = Awake(kind.settings.stay_awake)
        self._supervisor = Supervisor(
            store,
            budget,
            kind,
            self.residency,
            Hooks(self._on_change, self._on_marked, self._prefixes, self._prepare, self.awake),
        )
        self.metrics = NodeMetrics(self._supervisor)
        self._hub.listen(self.metrics.finished)
        self._watchdog = Watchdog(
            self._supervisor,
            self.residency,
            lambda: self._hub.is_watched,
            kind.settings.stall_timeout_s,
        )
        self.live_parts = LiveParts(self.residency, self._supervisor, self._watchdog, self.awake)
        self.disk = Disk(store, self._supervisor, self._on_change)
        self._filter, self._macs = ModelFilter(), OwnMacs()
        self._warming = Warming(self._supervisor, self._renderers, warm or {})
        self.requests = Requests(
            self._supervisor,
            self._renderers,
            self._warming,
            self._hub,
            self._prefixes,
            CallSettings(kind.settings.repeated_tool_calls, kind.settings.tool_stream),
        )

    # --- lifecycle ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the agent's tasks. Raises `StartError` if the store cannot be read."""
        self.awake.start()
        await self._supervisor.refresh()
        await self.disk.start()
        if missing := self._warming.missing(self._supervisor.names()):
            logger.warning("Warm prompts are for models not on this node: %s.", ", ".join(missing))
        _warn_of_unknown_models(self._supervisor.names(), self._kind.settings)
        self._renderers.keep_spare()
        self._tasks = (
            asyncio.create_task(self._run_heartbeat()),
            asyncio.create_task(self._run_refresh()),
            asyncio.create_task(self._watchdog.run()),
            asyncio.create_task(watch_pressure(self._supervisor, self._kind.machine.memory_bytes)),
            asyncio.create_task(watch_sleep()),
        )

    def _count_models(self) -> int:
        """Number of models that need a render process, one of which is started ahead; 0 if none
        is."""
        settings = self._kind.settings
        is_scripted = settings.engine in WITHOUT_MLX
        return len(self._supervisor.names()) if settings.spare_engine and not is_scripted else 0

    async def drain(self, grace_s: float) -> None:
        """Drains the requests like `Requests.drain`. Then all event streams end, after the usage
        records of all requests."""
        self._ending = True
        await self.requests.drain(grace_s)
        self.end_events()

    def end_events(self) -> None:
        """Ends all event streams, so that a server that waits for its connections can stop."""
        self._ending = True
        self.requests.close()
        self._hub.close()

    async def close(self, grace_s: float) -> None:
        """Stops every engine; one that still runs after `grace_s` is killed."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._warming.close()
        await self.disk.close()
        await self._supervisor.close(grace_s)
        await self._prefixes.close()
        await self._renderers.close()
        self.end_events()
        await self.awake.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def _run_heartbeat(self) -> None:
        while True:
            await self._hub.until_watched()
            # Half of the promised interval, so that a late timer does not exceed it.
            await asyncio.sleep(HEARTBEAT_S / 2)
            self._on_change()

    async def _run_refresh(self) -> None:
        # Not part of the heartbeat, which must not wait for a disk.
        reported = ""
        while True:
            await asyncio.sleep(REFRESH_S)
            self.disk.pulls.retry_due()
            try:
                await self._supervisor.refresh()
                await self.disk.refresh()
                reported = ""
            except StartError as exc:
                if exc.message != reported:
                    logger.warning("%s", exc.message)
                reported = exc.message

    # --- state -------------------------------------------------------------------------------

    def status(self) -> NodeStatus:
        budget = self._supervisor.budget
        return NodeStatus(
            protocol=PROTOCOL_VERSION,
            node_id=self.identity.node_id,
            instance_id=self.instance_id,
            version=self.identity.version,
            engine=self._kind.settings.engine,
            chip=self.identity.chip,
            memory_budget_bytes=budget.total_bytes,
            memory_leased_bytes=budget.leased_bytes,
            models=self._filter.of(self.disk.with_pulls(self._supervisor.status())),
            disk_free_bytes=self.disk.free_bytes,
            min_residency_s=self._kind.settings.min_residency_s,
            max_swap_wait_s=self._kind.settings.max_swap_wait_s,
            in_maintenance=self.residency.in_maintenance,
            pressure=reported_pressure(self._supervisor),
            now_unix_s=time.time(),
            broken=self._filter.broken(self._supervisor.broken),
            installed_by=own_installer(),
            macs=self._macs.now(),
        )

    def report(self) -> dict[str, Any]:
        """The body of `/v1/node/status`."""
        return node_report(self._supervisor)

    def unready_reason(self) -> str | None:
        """The reason why no request can be served, as a sentence; None if one can."""
        if self._ending or not self._tasks:
            return "The agent is starting or shutting down."
        return None if self._supervisor.names() else "There is no model on this node."

    async def meant(self, name: str, origin: str = "") -> str:
        """The model that a client means by a name, whole or short; the name itself if there is
        none, or if a router names it by `origin`: its names are whole, and a model that has gone
        must not become another one. Raises `UnknownModel` for a short name of several."""
        return name if origin else await self._supervisor.meant(name)

    async def cards(self) -> list[ModelCard]:
        """The entries of `/v1/models`, by name."""
        await self._supervisor.refresh()
        return [_card(status) for status in self._supervisor.status()]

    async def card(self, name: str) -> ModelCard:
        """The entry of one model. Raises `UnknownModel`."""
        entry = await self._supervisor.find(name)
        cards = [_card(each) for each in self._supervisor.status() if each.name == entry.name]
        return cards[0]

    async def count_tokens(self, request: TextRequest, caller: str = "") -> int:
        """Number of tokens of the request's prompt, an estimate if it exceeds the model's context.
        The model need not be loaded. Raises `UnknownModel`, `BadRequest`, `LoadFailure` or
        `TooManyWaiting`."""
        entry = await self._supervisor.find(request.model)
        render_request = RenderRequest(entry.completed(request), entry.context_tokens, caller)
        try:
            prompt = await self._renderers.render(entry.folder, render_request, entry.formats)
        except ContextTooLong as exc:
            return exc.overflow.prompt_tokens
        return len(prompt.tokens)

    def subscribe(self, instance: str, after: int) -> AsyncIterator[list[Event]]:
        """Streams events: the node's status, the finished requests after number `after` of that
        instance (all kept ones for another instance), the prefixes of all loaded models, then every
        event as it happens."""
        known = after if instance == self.instance_id else 0
        return self._hub.subscribe(StatusEvent(self.status()), known, self._prefixes.pieces)

    async def load(self, name: str) -> None:
        """Loads the model and prefills its warm prompts, even if its last load has just failed, and
        waits. Raises `UnknownModel`, `DoesNotFit` or `LoadFailure`."""
        entry = await self._supervisor.find(name)
        self._supervisor.retry_now(entry)
        self._renderers.begin(entry.folder, entry.formats)
        with self._supervisor.serving(entry) as lease:
            handle = await lease.ready(ahead=True)
            await self._renderers.ready(entry.folder, entry.formats)
        # The lease has ended: an unload need not wait for warm prompts as for a request.
        await self._warming.finished(handle)

    async def unload(
        self, name: str, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Stops the model's engine and waits; prefills of its warm prompts are cancelled. Raises
        `UnknownModel`, or `ModelBusy`, also if it is another load of the model or has not been idle
        for so long."""
        entry = await self._supervisor.find(name)
        if generation is None:
            await self._warming.cancel_plan(entry)
        await self._supervisor.unload(entry, generation, min_idle_s)

    def set_policies(self, policies: Policies) -> None:
        """Applies a router's policies for the residency of models."""
        self.residency.set(policies)
        self._supervisor.on_residency_change()
        self._on_change()

    async def warm(
        self, name: str, requests: Sequence[TextRequest]
    ) -> AsyncGenerator[WarmReport | None, None]:
        """The same as `Warming.warm`. Raises `UnknownModel` at once."""
        return self._warming.warm(await self._supervisor.find(name), requests)

    async def clear_cache(self, model: str | None = None) -> ClearedCache:
        """Clears the prefix caches of all engines, or of the model's, in memory and on disk, pinned
        or not. Raises `UnknownModel`."""
        models, memory_bytes, disk_bytes = [], 0, 0
        only = None if model is None else (await self._supervisor.find(model)).name
        statuses = [each for each in self._supervisor.status() if only in (None, each.name)]
        skipped = [each.name for each in statuses if each.state is ModelState.LOADING]
        for name, engine in self._supervisor.engines().items():
            if only not in (None, name):
                continue
            before = engine.handle.link.stats
            # The cache of an engine that dies is gone, too.
            with contextlib.suppress(EngineDied):
                try:
                    after = await engine.handle.link.clear_cache()
                except EngineUnresponsive:
                    skipped.append(name)
                    continue
                if before is not None:
                    memory_bytes += max(before.stored_kv_bytes - after.stored_kv_bytes, 0)
                    disk_bytes += max(before.disk_kv_bytes - after.disk_kv_bytes, 0)
                models.append(name)
        return ClearedCache(tuple(models), memory_bytes, disk_bytes, tuple(skipped))

    # --- events ------------------------------------------------------------------------------

    def publish_stored(self, response_id: str, origin: str, end: Head) -> None:
        """Reports to the response's router where its prefix hash chain ends, from which later
        requests continue. Has no effect for a response without a router."""
        if origin:
            self._hub.publish(Stored(response_id, origin, *end))

    def _on_change(self) -> None:
        if self._hub.is_watched:
            self._hub.publish(StatusEvent(self.status()))

    async def _prepare(self, entry: ModelEntry) -> None:
        await self._renderers.ready(entry.folder, entry.formats)

    def _on_marked(self, marked: Marked) -> None:
        self._hub.publish(CancelMarked(marked.uid, marked.monotonic_s))


def _warn_of_unknown_models(names: Sequence[str], settings: Settings) -> None:
    # This is no reason not to start: a model may come later.
    for option, models in named_models(settings).items():
        if missing := sorted(models - set(names)):
            logger.warning(
                "%s is for models not on this node: %s. Models here: %s.",
                option,
                ", ".join(missing),
                ", ".join(names) or "none",
            )


def _card(status: ModelStatus) -> ModelCard:
    return ModelCard(
        name=status.name,
        context_tokens=status.context_tokens,
        capabilities=status.capabilities,
        tool_parser=status.tool_parser,
        reasoning_parser=status.reasoning_parser,
        state=status.state.value,
    )
