"""Prefills prompts that then stay in the prefix cache of a model's engine.

Warm prompts are nobody's requests: they have no account, and hold up no request. Those of the
agent's settings are prefilled at each load of their model. They wait for the engine's share of
memory and while the machine is very short of it, and those that there was no room for are tried
again when there is more.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import msgspec

from node.agent.warm_prompts import Told, WarmPlan, WarmProgress, WarmResult
from node.engines.slot import EngineHandle
from node.engines.supervisor import Supervisor
from node.errors import EngineFault, ModelBusy, NodeError
from node.ipc.messages import Delta, Pressure, Progress, RowUsage
from node.models.store import ModelEntry
from node.prompt.prompt import RenderRequest
from node.prompt.renderers import Renderers
from node.prompt.submission import generate_request
from node.protocol.messages import FinishReason
from node.request import TextRequest

PROGRESS_S = 0.5
"""How often the progress of a prompt is told."""
RETRY_GROWTH = 1.2
"""How many times the memory of the last try makes another one worth it. What has been pinned
meanwhile alone lets the grant grow by up to a tenth."""
PRESSURE_S = 1.0
"""How often the plan looks whether the machine has memory again."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Run:
    """The plan's prompts on their way into one engine."""

    handle: EngineHandle
    left: list[tuple[int, TextRequest]]
    """Those that are not warm, and their indices in the plan."""
    task: asyncio.Task[None] | None = None
    granted_bytes: int = 0
    """Stored KV that the engine was granted when `left` was last tried."""
    rested: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether nothing more happens until the machine has memory again."""

    @property
    def works(self) -> bool:
        return self.task is not None and not self.task.done()


class Warming:
    """The warm prompts of one agent."""

    def __init__(self, supervisor: Supervisor, renderers: Renderers, plan: WarmPlan) -> None:
        self._supervisor = supervisor
        self._renderers = renderers
        self._plan = plan
        self._runs: dict[str, _Run] = {}
        """By model: the last engine that the plan's prompts went to."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: Counter[str] = Counter()
        """By model: commands in work."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """The models of the plan that are not among `names`."""
        return sorted(self._plan.keys() - set(names))

    def begin(self, handle: EngineHandle) -> None:
        """Has the plan's prompts prefilled: once for each engine, and those that failed again
        when it has been granted more memory."""
        run = self._run(handle)
        if run is None or run.works or not run.left:
            return
        is_new = run.task is None or run.task.cancelled()
        if is_new or self._granted(run) > run.granted_bytes * RETRY_GROWTH:
            self._start(run)

    async def finished(self, handle: EngineHandle) -> None:
        """Begins with what is not warm, and waits until the plan's prompts are prefilled, have
        failed, or wait for memory."""
        run = self._run(handle)
        if run is None or not run.left:
            return
        if not run.works:
            self._start(run)
        await run.rested.wait()

    async def warm(
        self, entry: ModelEntry, requests: Sequence[TextRequest]
    ) -> AsyncGenerator[Told | None, None]:
        """Prefills the requests' prompts one after the other: None once the model is loaded, then
        of each how far it is, and its result. Raises `LoadFailure`, `DoesNotFit`, `MemoryShort` or
        `ShuttingDown` before the first; the failure of a prompt is its result. Closing it early
        cancels the prompt in work."""
        with self._supervisor.serving(entry) as lease:
            handle = await lease.ready()
            await self._renderers.ready(entry.folder, entry.formats)
            await self._supervisor.settled()
            self._commands[entry.name] += 1
            try:
                yield None
                for index, request in enumerate(requests):
                    async with contextlib.aclosing(self._one(handle, index, request)) as told:
                        async for each in told:
                            yield each
            finally:
                self._commands[entry.name] -= 1

    async def give_way(self, entry: ModelEntry) -> None:
        """Gives up the plan's prompts that are in work, so that the model can be unloaded. Raises
        `ModelBusy` while a command warms it."""
        if self._commands[entry.name]:
            raise ModelBusy(f"Prompts of {entry.name} are being warmed.")
        run = self._runs.get(entry.name)
        if run is not None and run.task is not None and run.works:
            run.task.cancel()
            await asyncio.wait({run.task})

    async def close(self) -> None:
        """Gives up what is not prefilled yet."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the plan ----------------------------------------------------------------------------

    def _run(self, handle: EngineHandle) -> _Run | None:
        """What has become of the plan in this engine; None without a plan for its model."""
        name = handle.entry.name
        requests = self._plan.get(name)
        if not requests:
            return None
        run = self._runs.get(name)
        if run is None or run.handle is not handle:
            run = self._runs[name] = _Run(handle, list(enumerate(requests)))
        return run

    def _start(self, run: _Run) -> None:
        run.rested.clear()
        task = run.task = asyncio.create_task(self._follow_plan(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_plan(self, run: _Run) -> None:
        name = run.handle.entry.name
        try:
            most = Pressure.SOFT
            while await self._has_memory(run, most) and not await self._try(run):
                # What found no room then may find it once nothing is short any more.
                most = Pressure.NONE
        except NodeError as exc:
            logger.warning("The warm prompts of %s: %s", name, exc.message)
        finally:
            run.rested.set()

    async def _has_memory(self, run: _Run, most: Pressure) -> bool:
        """Waits while the machine is shorter of memory than `most`; whether the engine is still
        there."""
        await self._supervisor.settled()
        if run.handle.link.alive and self._supervisor.pressure > most:
            logger.info("The warm prompts of %s wait for memory.", run.handle.entry.name)
        while run.handle.link.alive and self._supervisor.pressure > most:
            run.rested.set()
            await asyncio.sleep(PRESSURE_S)
        return run.handle.link.alive

    async def _try(self, run: _Run) -> bool:
        """Prefills what is left; False where something found no room while the machine was short
        of memory."""
        started_s, tokens, entry = time.monotonic(), 0, run.handle.entry
        run.granted_bytes = self._granted(run)
        for index, request in tuple(run.left):
            with self._supervisor.serving(entry) as lease:
                if await lease.ready() is not run.handle:
                    return True
                result = await self._result(run.handle, index, request)
            # An engine keeps little or nothing then, and it is not the prompt's fault.
            if result.error is not None and self._supervisor.pressure is not Pressure.NONE:
                return False
            if result.error is None:
                run.left.remove((index, request))
                tokens += result.prompt_tokens
            else:
                logger.warning("Warm prompt %d of %s: %s", index + 1, entry.name, result.error)
        if tokens:
            logger.info(
                "Prefilled %d tokens of warm prompts for %s in %.1f s.",
                *(tokens, entry.name, time.monotonic() - started_s),
            )
        return True

    def _granted(self, run: _Run) -> int:
        return self._supervisor.budget.lease(run.handle.entry.name).stored_kv_bytes

    # --- one prompt --------------------------------------------------------------------------

    async def _result(self, handle: EngineHandle, index: int, request: TextRequest) -> WarmResult:
        async with contextlib.aclosing(self._one(handle, index, request)) as told:
            async for each in told:
                if isinstance(each, WarmResult):
                    return each
        raise EngineFault

    async def _one(
        self, handle: EngineHandle, index: int, request: TextRequest
    ) -> AsyncGenerator[Told, None]:
        """How far the prompt is, and at last its result."""
        started_s = time.monotonic()
        last: Delta | None = None
        try:
            async with contextlib.aclosing(self._prefill(handle, request)) as steps:
                async for step in steps:
                    if isinstance(step, Progress):
                        yield WarmProgress(index, step.done_tokens, step.total_tokens)
                    else:
                        last = step
            usage = _complete(last)
        except NodeError as exc:
            yield WarmResult(index, 0, 0, time.monotonic() - started_s, exc.message)
            return
        seconds = time.monotonic() - started_s
        yield WarmResult(index, usage.prompt_tokens, usage.cached_tokens, seconds)

    async def _prefill(
        self, handle: EngineHandle, request: TextRequest
    ) -> AsyncGenerator[Progress | Delta, None]:
        """How far the prefill is, and the row's last delta."""
        entry = handle.entry
        request = entry.completed(request)
        asked = RenderRequest(request, handle.info.context_tokens, shared=True)
        prompt = await self._renderers.render(entry.folder, asked, entry.formats)
        generate = generate_request(request, f"warm-{secrets.token_hex(8)}", prompt, handle.info)
        # There is no output, and so no room for one to be kept.
        generate = msgspec.structs.replace(generate, warm=True, max_tokens=1)
        row = handle.link.submit(generate, lambda row, last: None)
        try:
            await row.answered()
            told: Progress | None = None
            deltas: Sequence[Delta] = ()
            while not deltas or deltas[-1].finish is None:
                deltas = await row.next(PROGRESS_S)
                if not deltas and row.progress is not None and row.progress != told:
                    told = row.progress
                    yield told
            yield deltas[-1]
        finally:
            handle.link.cancel(row.uid)


def _complete(last: Delta | None) -> RowUsage:
    """The accounts of a prompt that is warm now. Raises `EngineFault` for another."""
    if last is None or last.usage is None:
        raise EngineFault
    if last.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
        raise EngineFault(last.error)
    return last.usage
