"""The node agent: runs requests, keeps their accounts, and tells routers what happens.

Every request that got as far as a known model ends in exactly one `Finished`, whoever ended it;
only one that is refused with 400 has none.
"""

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from node.agent.account import (
    Account,
    Job,
    raise_unless_complete,
    refusal,
    shut_down,
    take_back,
)
from node.agent.events import EventHub
from node.agent.report import node_report
from node.agent.warming import Warming
from node.agent.watch import watch_pressure
from node.errors import EngineDied, NodeError, ShuttingDown, StartError
from node.link import EngineSilent, RowRefused, RowStream
from node.memory import Budget
from node.openai import TextRequest
from node.prompt import Renderers, generate_request
from node.protocol.messages import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    CancelMarked,
    ClearedCache,
    Event,
    Finished,
    FinishReason,
    ModelState,
    NodeStatus,
    StatusEvent,
)
from node.store import ModelEntry, ModelStore
from node.stream import Batch
from node.supervisor import EngineHandle, EngineKind, Lease, Supervisor
from node.types import Delta, Marked, RowUsage
from node.warm import Told, WarmPlan

REFRESH_S = 5.0
LAST_WORD_S = 1.0
"""How long a request may take to end once it has been told to."""
ORIGIN_LIMIT = 200

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOTHING = RowUsage(0, 0, 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is, for routers."""

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
    ) -> None:
        self.identity = identity
        self.instance_id = secrets.token_hex(8)
        self._kind = kind
        self._hub = EventHub()
        self._renderers = Renderers()
        self._accounts: dict[str, Account] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._ending = False
        self._ended = False
        self._supervisor = Supervisor(
            store, budget, kind, on_change=self._on_change, on_marked=self._on_marked
        )
        self._warming = Warming(self._supervisor, self._renderers, warm or {})

    # --- lifecycle ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `StartError` if the store cannot be read."""
        await self._supervisor.refresh()
        if missing := self._warming.missing(self._supervisor.names()):
            logger.warning("Warm prompts are for models not on this node: %s.", ", ".join(missing))
        self._tasks = (
            asyncio.create_task(self._keep_beating()),
            asyncio.create_task(self._keep_fresh()),
            asyncio.create_task(watch_pressure(self._supervisor, self._kind.machine.memory_bytes)),
        )

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests, and waits until none is open. Those that still are after
        `grace_s`, or after `hurry`, end with `ShuttingDown`. Then all event streams end: they have
        the accounts of every request."""
        self._ending = True
        waits = {asyncio.create_task(event.wait()) for event in (self._idle, self._hurry)}
        await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        self._ended = True
        for account in tuple(self._accounts.values()):
            shut_down(account)
        # What has no row yet ends in its own task, unless its client keeps that from running.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), LAST_WORD_S)
        self.end_events()

    def hurry(self) -> None:
        """Ends the grace of `drain` now."""
        self._hurry.set()

    def end_events(self) -> None:
        """Ends all event streams, so that a server that waits for its connections can stop."""
        self._ending = True
        self._hub.close()

    async def close(self, grace_s: float) -> None:
        """Stops every engine; one that is not gone after `grace_s` is killed."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._warming.close()
        await self._supervisor.close(grace_s)
        self._renderers.close()
        self.end_events()

    async def _keep_beating(self) -> None:
        while True:
            # Half of the promised time, so that a late timer does not break the promise.
            await asyncio.sleep(HEARTBEAT_S / 2)
            self._on_change()

    async def _keep_fresh(self) -> None:
        # Apart from the beat, which must not wait for a disk.
        told = ""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._supervisor.refresh()
                told = ""
            except StartError as exc:
                if exc.message != told:
                    logger.warning("%s", exc.message)
                told = exc.message

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
            models=self._supervisor.status(),
        )

    def report(self) -> dict[str, Any]:
        """What `/v1/node/status` tells."""
        return node_report(self._supervisor)

    def unready_reason(self) -> str | None:
        """Why no request can be served, as a sentence; None if one can."""
        if self._ending or not self._tasks:
            return "The agent is starting or shutting down."
        return None if self._supervisor.names() else "There is no model on this node."

    def subscribe(self, instance: str, after: int) -> AsyncIterator[list[Event]]:
        """The node's status, the finished requests after number `after` of that instance (all
        kept ones if this is another instance), then every event as it happens."""
        known = after if instance == self.instance_id else 0
        return self._hub.subscribe(StatusEvent(self.status()), known)

    async def model_names(self) -> list[str]:
        await self._supervisor.refresh()
        return sorted(self._supervisor.names())

    async def find(self, name: str) -> ModelEntry:
        """Raises `UnknownModel`."""
        return await self._supervisor.find(name)

    async def load(self, name: str) -> None:
        """Loads the model, prefills its warm prompts, and waits. Raises `UnknownModel`,
        `DoesNotFit` or `LoadFailure`."""
        entry = await self._supervisor.find(name)
        self._renderers.begin(entry.folder)
        with self._supervisor.serving(entry) as lease:
            handle = await lease.ready()
            await self._renderers.get(entry.folder)
        # Not as a request that an unload would have to wait for.
        await self._warming.finished(handle)

    async def unload(self, name: str) -> None:
        """Stops the model's engine and waits; its warm prompts in work are given up. Raises
        `UnknownModel` or `ModelBusy`."""
        entry = await self._supervisor.find(name)
        await self._warming.give_way(entry)
        await self._supervisor.unload(entry)

    async def warm(
        self, name: str, requests: Sequence[TextRequest]
    ) -> AsyncGenerator[Told | None, None]:
        """As `Warming.warm`. Raises `UnknownModel` at once."""
        return self._warming.warm(await self._supervisor.find(name), requests)

    async def clear_cache(self) -> ClearedCache:
        """Has every engine forget its stored KV, in memory and on disk, pinned or not."""
        models, memory_bytes, disk_bytes = [], 0, 0
        loading = ModelState.LOADING
        skipped = [each.name for each in self._supervisor.status() if each.state is loading]
        for name, engine in self._supervisor.engines().items():
            before = engine.handle.link.stats
            # An engine that dies forgets as well.
            with contextlib.suppress(EngineDied):
                try:
                    after = await engine.handle.link.clear_cache()
                except EngineSilent:
                    skipped.append(name)
                    continue
                if before is not None:
                    memory_bytes += max(before.stored_kv_bytes - after.stored_kv_bytes, 0)
                    disk_bytes += max(before.disk_kv_bytes - after.disk_kv_bytes, 0)
                models.append(name)
        return ClearedCache(tuple(models), memory_bytes, disk_bytes, tuple(skipped))

    # --- requests ----------------------------------------------------------------------------

    def job(self, request: TextRequest, wished_id: str, origin: str) -> Job:
        """The request under the id that the caller wished for, if it can be had."""
        request_id = wished_id if _REQUEST_ID.fullmatch(wished_id) else secrets.token_hex(12)
        if request_id in self._accounts:
            request_id = f"{request_id[:51]}-{secrets.token_hex(6)}"
        return Job(request, request_id, origin[:ORIGIN_LIMIT], time.monotonic())

    async def run(self, job: Job, tick_s: float) -> AsyncGenerator[Batch, None]:
        """That the engine has taken the request, then its deltas, all that wait at a time; none,
        or how far the prefill is, after each `tick_s` of silence, from the start on. Closing it
        early cancels the request, in whatever phase.

        Raises a `NodeError`: before the first delta, or in place of the last.
        """
        account = Account(job)
        self._accounts[job.request_id] = account
        self._idle.clear()
        reason: FinishReason | None = FinishReason.ERROR
        try:
            if self._ending:
                raise ShuttingDown
            entry = await self._supervisor.find(job.request.model)
            async with contextlib.aclosing(self._deltas(account, entry, tick_s)) as batches:
                async for batch in batches:
                    yield batch
        except NodeError as exc:
            reason = FinishReason.ERROR if exc.status >= 500 else None
            raise
        except (asyncio.CancelledError, GeneratorExit):
            reason = FinishReason.CANCELLED
            raise
        finally:
            if account.row is None:
                self._finish(account, _NOTHING, reason)

    async def _deltas(
        self, account: Account, entry: ModelEntry, tick_s: float
    ) -> AsyncGenerator[Batch, None]:
        with self._supervisor.serving(entry) as lease:
            if self._ended:
                raise ShuttingDown
            start = account.start = asyncio.create_task(self._start(account, lease, entry))
            try:
                while not start.done():
                    await asyncio.wait({start}, timeout=tick_s)
                    if not start.done():
                        yield ()
                if start.cancelled():
                    raise ShuttingDown
                _, row = start.result()
                if row.accepted is not None:
                    yield row.accepted
                finish = None
                while finish is None:
                    deltas = await row.next(tick_s)
                    yield deltas or row.progress or ()
                    if deltas:
                        finish = deltas[-1].finish
                raise_unless_complete(deltas[-1])
            finally:
                take_back(start)

    async def _start(
        self, account: Account, lease: Lease, entry: ModelEntry
    ) -> tuple[EngineHandle, RowStream]:
        """From the request to a row that the engine has accepted."""
        request = account.job.request
        self._renderers.begin(entry.folder)
        handle = await lease.ready()
        self._warming.begin(handle)
        prompt = await self._renderers.render(entry.folder, request)
        generate = generate_request(request, account.job.request_id, prompt, handle.info)
        row = handle.link.submit(generate, lambda row, last: self._on_row_end(account, row, last))
        account.handle, account.row = handle, row
        try:
            await row.answered()
        except asyncio.CancelledError:
            handle.link.cancel(row.uid)
            raise
        except RowRefused as exc:
            raise refusal(exc, generate, request, handle) from None
        return handle, row

    # --- events ------------------------------------------------------------------------------

    def _on_change(self) -> None:
        if self._hub.is_watched:
            self._hub.publish(StatusEvent(self.status()))

    def _on_marked(self, marked: Marked) -> None:
        self._hub.publish(CancelMarked(marked.uid, marked.monotonic_s))

    def _on_row_end(self, account: Account, row: RowStream, last: Delta | None) -> None:
        reason: FinishReason | None = FinishReason.ERROR
        usage = None
        if last is not None:
            reason, usage = last.finish, last.usage
        elif isinstance(row.failure, RowRefused):
            reason = None
        if usage is None:
            prompt_tokens = row.accepted.prompt_tokens if row.accepted else 0
            cached_tokens = row.accepted.cached_tokens if row.accepted else 0
            usage = RowUsage(prompt_tokens, cached_tokens, row.token_count, 0.0, 0.0, 0.0)
        self._finish(account, usage, reason)

    def _finish(self, account: Account, usage: RowUsage, reason: FinishReason | None) -> None:
        """Closes the account, and publishes it unless `reason` is None."""
        job, row = account.job, account.row
        self._accounts.pop(job.request_id, None)
        if not self._accounts:
            self._idle.set()
        if reason is None:
            return
        first_s = row.first_content_s if row is not None else None
        self._hub.finish(
            Finished(
                seq=0,
                request_id=job.request_id,
                origin=job.origin,
                model=job.request.model,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                reasoning_tokens=0,
                queue_s=usage.queue_s,
                ttft_s=None if first_s is None else first_s - job.arrived_s,
                prefill_s=usage.prefill_s,
                decode_s=usage.decode_s,
                reason=reason,
                finished_unix_s=time.time(),
            )
        )
