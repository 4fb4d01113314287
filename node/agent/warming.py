"""Prefills prompts that then stay in the prefix cache of a model's engine.

Warm prompts are not requests of clients: they have no usage record, and delay no request. Those of
the agent's settings are prefilled at each load of their model. They wait until the engine has been
given its memory lease, and while memory pressure is hard. Prompts that there was no room for are
retried when there is more.
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

from node.agent.warm_prompts import WarmPlan, WarmProgress, WarmReport, WarmResult
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
"""Seconds between two progress reports of a prompt."""
RETRY_GROWTH = 1.2
"""Growth of the grant since the last try that makes another try worthwhile. Prompts that were
pinned in between let the grant grow by up to a tenth by themselves."""
PRESSURE_S = 1.0
"""Seconds between two checks whether the machine has memory again."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Run:
    """The prefills of the plan's prompts in one engine."""

    handle: EngineHandle
    remaining: list[tuple[int, TextRequest]]
    """Prompts that are not warm yet, with their indices in the plan."""
    task: asyncio.Task[None] | None = None
    granted_bytes: int = 0
    """Stored KV that the engine was granted when `remaining` was last tried."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more happens until the machine has memory again."""

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()


class Warming:
    """The warm prompts of one agent."""

    def __init__(self, supervisor: Supervisor, renderers: Renderers, plan: WarmPlan) -> None:
        self._supervisor = supervisor
        self._renderers = renderers
        self._plan = plan
        self._runs: dict[str, _Run] = {}
        """By model, the last engine that got the plan's prompts."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: Counter[str] = Counter()
        """Number of running commands by model."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """The models of the plan that are not among `names`."""
        return sorted(self._plan.keys() - set(names))

    def begin(self, handle: EngineHandle) -> None:
        """Starts prefilling the plan's prompts: once for each engine, and those that failed again
        after the engine has been granted more memory."""
        run = self._run(handle)
        if run is None or run.is_running or not run.remaining:
            return
        is_new = run.task is None or run.task.cancelled()
        if is_new or self._granted(run) > run.granted_bytes * RETRY_GROWTH:
            self._start(run)

    async def finished(self, handle: EngineHandle) -> None:
        """Starts prefilling the prompts that are not warm, and waits until all prompts of the plan
        are prefilled, have failed, or wait for memory."""
        run = self._run(handle)
        if run is None or not run.remaining:
            return
        if not run.is_running:
            self._start(run)
        await run.settled.wait()

    async def warm(
        self, entry: ModelEntry, requests: Sequence[TextRequest]
    ) -> AsyncGenerator[WarmReport | None, None]:
        """Prefills the requests' prompts one after the other. Yields None once the model is loaded,
        then progress and result of each prompt.

        Raises `LoadFailure`, `DoesNotFit`, `MemoryShort` or `ShuttingDown` before the first; a
        prompt's failure is its result. Closing the generator early cancels the current prompt.
        """
        with self._supervisor.serving(entry) as lease:
            handle = await lease.ready()
            await self._renderers.ready(entry.folder, entry.formats)
            await self._supervisor.settled()
            self._commands[entry.name] += 1
            try:
                yield None
                for index, request in enumerate(requests):
                    async with contextlib.aclosing(self._one(handle, index, request)) as reports:
                        async for each in reports:
                            yield each
            finally:
                self._commands[entry.name] -= 1

    async def cancel_plan(self, entry: ModelEntry) -> None:
        """Cancels the prefills of the plan's prompts, so that the model can be unloaded. Raises
        `ModelBusy` while a command warms it."""
        if self._commands[entry.name]:
            raise ModelBusy(f"Prompts of {entry.name} are being warmed.")
        run = self._runs.get(entry.name)
        if run is not None and run.task is not None and run.is_running:
            run.task.cancel()
            await asyncio.wait({run.task})

    async def close(self) -> None:
        """Cancels all prefills."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the plan ----------------------------------------------------------------------------

    def _run(self, handle: EngineHandle) -> _Run | None:
        """The state of the plan in this engine; None without a plan for its model."""
        name = handle.entry.name
        requests = self._plan.get(name)
        if not requests:
            return None
        run = self._runs.get(name)
        if run is None or run.handle is not handle:
            run = self._runs[name] = _Run(handle, list(enumerate(requests)))
        return run

    def _start(self, run: _Run) -> None:
        run.settled.clear()
        task = run.task = asyncio.create_task(self._follow_plan(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_plan(self, run: _Run) -> None:
        name = run.handle.entry.name
        try:
            most = Pressure.SOFT
            while await self._has_memory(run, most) and not await self._try(run):
                # Prompts that found no room are retried once there is no memory pressure.
                most = Pressure.NONE
        except NodeError as exc:
            logger.warning("The warm prompts of %s: %s", name, exc.message)
        finally:
            run.settled.set()

    async def _has_memory(self, run: _Run, most: Pressure) -> bool:
        """Waits while memory pressure is above `most`; True if the engine is still running."""
        await self._supervisor.settled()
        if run.handle.link.alive and self._supervisor.pressure > most:
            logger.info("The warm prompts of %s wait for memory.", run.handle.entry.name)
        while run.handle.link.alive and self._supervisor.pressure > most:
            run.settled.set()
            await asyncio.sleep(PRESSURE_S)
        return run.handle.link.alive

    async def _try(self, run: _Run) -> bool:
        """Prefills the remaining prompts; False if one found no room during memory pressure."""
        started_s, tokens, entry = time.monotonic(), 0, run.handle.entry
        run.granted_bytes = self._granted(run)
        for index, request in tuple(run.remaining):
            with self._supervisor.serving(entry) as lease:
                if await lease.ready() is not run.handle:
                    return True
                result = await self._result(run.handle, index, request)
            # Under pressure an engine stores little or nothing, which is not the prompt's fault.
            if result.error is not None and self._supervisor.pressure is not Pressure.NONE:
                return False
            if result.error is None:
                run.remaining.remove((index, request))
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
        async with contextlib.aclosing(self._one(handle, index, request)) as reports:
            async for each in reports:
                if isinstance(each, WarmResult):
                    return each
        raise EngineFault

    async def _one(
        self, handle: EngineHandle, index: int, request: TextRequest
    ) -> AsyncGenerator[WarmReport, None]:
        """The prompt's progress, and at last its result."""
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
        """The prefill's progress, and the row's last delta."""
        entry = handle.entry
        request = entry.completed(request)
        render_request = RenderRequest(request, handle.info.context_tokens, shared=True)
        prompt = await self._renderers.render(entry.folder, render_request, entry.formats)
        generate = generate_request(request, f"warm-{secrets.token_hex(8)}", prompt, handle.info)
        # There is no output, and so no room needs to be reserved for it.
        generate = msgspec.structs.replace(generate, warm=True, max_tokens=1)
        row = handle.link.submit(generate, lambda row, last: None)
        try:
            await row.until_accepted()
            last_report: Progress | None = None
            deltas: Sequence[Delta] = ()
            while not deltas or deltas[-1].finish is None:
                deltas = await row.next(PROGRESS_S)
                if not deltas and row.progress is not None and row.progress != last_report:
                    last_report = row.progress
                    yield last_report
            yield deltas[-1]
        finally:
            handle.link.cancel(row.uid)


def _complete(last: Delta | None) -> RowUsage:
    """The usage of a prompt that is warm now. Raises `EngineFault` for any other."""
    if last is None or last.usage is None:
        raise EngineFault
    if last.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
        raise EngineFault(last.error)
    return last.usage
