"""Prefills prompts that then stay in the prefix cache of a model's engine.

Warm prompts are nobody's requests: they have no account, and hold up no request. Those of the
agent's settings are prefilled at each load of their model.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from node.errors import EngineFault, NodeError
from node.openai import TextRequest
from node.prompt import Renderers, generate_request
from node.protocol.messages import FinishReason
from node.store import ModelEntry
from node.supervisor import EngineHandle, Supervisor
from node.types import Delta, RowUsage
from node.warm import WarmPlan, WarmResult

logger = logging.getLogger(__name__)


class Warming:
    """The warm prompts of one agent."""

    def __init__(self, supervisor: Supervisor, renderers: Renderers, plan: WarmPlan) -> None:
        self._supervisor = supervisor
        self._renderers = renderers
        self._plan = plan
        self._begun: dict[str, tuple[EngineHandle, asyncio.Task[None]]] = {}
        """By model: the last engine that the plan's prompts went to."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """The models of the plan that are not among `names`."""
        return sorted(self._plan.keys() - set(names))

    def begin(self, handle: EngineHandle) -> None:
        """Has the plan's prompts prefilled, once for each engine."""
        name = handle.entry.name
        requests = self._plan.get(name)
        begun = self._begun.get(name)
        if requests and (begun is None or begun[0] is not handle):
            task = asyncio.create_task(self._follow_plan(handle, requests))
            self._begun[name] = (handle, task)

    async def finished(self, handle: EngineHandle) -> None:
        """Begins if need be, and waits until the plan's prompts are prefilled or have failed."""
        self.begin(handle)
        begun = self._begun.get(handle.entry.name)
        if begun is not None:
            # Unlike an await of the task, its end of waiting does not cancel it for the others.
            await asyncio.wait({begun[1]})

    async def warm(
        self, entry: ModelEntry, requests: Sequence[TextRequest]
    ) -> AsyncGenerator[WarmResult | None, None]:
        """Prefills the requests' prompts one after the other: None once the model is loaded, then
        a result for each. Raises `LoadFailure`, `DoesNotFit` or `ShuttingDown` before the first;
        the failure of a prompt is its result. Closing it early cancels the prompt in work."""
        with self._supervisor.serving(entry) as lease:
            handle = await lease.ready()
            await self._renderers.get(entry.folder)
            yield None
            for index, request in enumerate(requests):
                yield await self._result(handle, index, request)

    async def close(self) -> None:
        """Gives up what is not prefilled yet."""
        tasks = [task for _, task in self._begun.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow_plan(self, handle: EngineHandle, requests: Sequence[TextRequest]) -> None:
        entry, started_s, tokens = handle.entry, time.monotonic(), 0
        try:
            async with contextlib.aclosing(self.warm(entry, requests)) as results:
                async for result in results:
                    if result is None:
                        continue
                    if result.error is not None:
                        logger.warning(
                            "Warm prompt %d of %s: %s", result.index + 1, entry.name, result.error
                        )
                    tokens += result.prompt_tokens
        except NodeError as exc:
            logger.warning("The warm prompts of %s: %s", entry.name, exc.message)
            return
        logger.info(
            "Prefilled %d tokens of warm prompts for %s in %.1f s.",
            *(tokens, entry.name, time.monotonic() - started_s),
        )

    async def _result(self, handle: EngineHandle, index: int, request: TextRequest) -> WarmResult:
        started_s = time.monotonic()
        try:
            usage = await self._prefill(handle, request)
        except NodeError as exc:
            return WarmResult(index, 0, 0, time.monotonic() - started_s, exc.message)
        seconds = time.monotonic() - started_s
        return WarmResult(index, usage.prompt_tokens, usage.cached_tokens, seconds)

    async def _prefill(self, handle: EngineHandle, request: TextRequest) -> RowUsage:
        prompt = await self._renderers.render(handle.entry.folder, request, shared=True)
        generate = generate_request(request, f"warm-{secrets.token_hex(8)}", prompt, handle.info)
        # There is no output, and so no room for one to be kept.
        generate = msgspec.structs.replace(generate, warm=True, max_tokens=1)
        row = handle.link.submit(generate, lambda row, last: None)
        try:
            await row.answered()
            last: Delta | None = None
            while last is None or last.finish is None:
                deltas = await row.next()
                last = deltas[-1] if deltas else last
        finally:
            handle.link.cancel(row.uid)
        if last.finish in (FinishReason.ERROR, FinishReason.CANCELLED) or last.usage is None:
            raise EngineFault(last.error)
        return last.usage
