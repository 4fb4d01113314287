"""The renderers of all models of an agent."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from node.errors import TooManyWaiting
from node.ipc.child_process import ChildProcess, Spare, spawn
from node.parsing.selection import Formats
from node.prompt.local import LocalRenderer
from node.prompt.process import RenderLimits
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.remote import RemoteRenderer
from serving.fair_shares import FairShares

WORKER_MODULE = "node.prompt.worker"
"""Module that a render process runs."""
THREADS = 4
"""Threads for scripted prompts."""
KEPT = 4
"""Fewest render processes that are kept, each of some 0.2 GB; above it, the least recently used one
ends."""
SPARE_S = 3.0
"""Seconds until a process is started ahead, after the agent's start or after the last spare was
taken."""


class ModelRenderer(Protocol):
    """Makes one model's prompts."""

    def begin(self) -> None:
        """Starts to load what the renderer needs."""

    async def open(self) -> None:
        """Waits until everything is loaded. Raises `LoadFailure`."""

    async def render(self, render_request: RenderRequest) -> Prompt:
        """Makes the prompt. Raises `BadRequest`, `ContextTooLong`, `LoadFailure`, `RendererDied` or
        `TooManyWaiting`."""

    async def close(self) -> None:
        """Ends the renderer's process, if it has one."""


class Renderers:
    """One renderer for each model folder and its formats, loaded once however many requests wait
    for it."""

    def __init__(
        self,
        limits: RenderLimits | None = None,
        *,
        models: Callable[[], int] = lambda: 0,
        loaded: Callable[[], int] = lambda: 0,
    ) -> None:
        """`models`: number of models for which a process may be started ahead; `loaded`: number of
        models that have an engine, and so keep their process."""
        self._limits = limits or RenderLimits()
        self._models = models
        self._loaded = loaded
        self._spare = Spare(WORKER_MODULE)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="render")
        self._shares = FairShares(THREADS, TooManyWaiting)
        self._renderers: dict[tuple[Path, Formats | None], ModelRenderer] = {}
        """Ordered by use; the most recently used one is last."""
        self._ending: set[asyncio.Task[None]] = set()

    def keep_spare(self) -> None:
        """Starts a process ahead, if there is a model without one."""
        self._spare.refill(SPARE_S, lambda: len(self._renderers) < self._models())

    async def close(self) -> None:
        """Ends all processes."""
        if self._ending:
            await asyncio.wait(self._ending)
        await asyncio.gather(*(renderer.close() for renderer in self._renderers.values()))
        await self._spare.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, folder: Path, formats: Formats | None = None) -> None:
        """Starts to load the folder's renderer, unless it is loaded or being loaded. `formats`:
        formats of the output; None for those found from the folder. A scripted model has an empty
        path."""
        self._renderer(folder, formats).begin()

    async def ready(self, folder: Path, formats: Formats | None = None) -> None:
        """Waits until the folder's renderer is loaded. Raises `LoadFailure`."""
        await self._renderer(folder, formats).open()

    async def render(
        self, folder: Path, render_request: RenderRequest, formats: Formats | None = None
    ) -> Prompt:
        """Makes a prompt; like `ModelRenderer.render`."""
        return await self._renderer(folder, formats).render(render_request)

    def _renderer(self, folder: Path, formats: Formats | None) -> ModelRenderer:
        key = folder, formats
        found = self._renderers.pop(key, None)
        if found is None:
            self._end_least_used()
            found = self._made(folder, formats)
        self._renderers[key] = found
        return found

    def _made(self, folder: Path, formats: Formats | None) -> ModelRenderer:
        if folder == Path():
            return LocalRenderer(formats, self._threads, self._shares)
        return RemoteRenderer(folder, formats, self._start, self._limits)

    async def _start(self) -> ChildProcess:
        child = self._spare.take() or await spawn(WORKER_MODULE)
        self.keep_spare()
        return child

    def _end_least_used(self) -> None:
        """Makes room for one more render process by ending the least recently used ones that are
        idle."""
        remote = {
            key: renderer
            for key, renderer in self._renderers.items()
            if isinstance(renderer, RemoteRenderer)
        }
        surplus = len(remote) + 1 - max(KEPT, self._loaded())
        idle = [key for key, renderer in remote.items() if renderer.is_idle]
        for key in idle[: max(0, surplus)]:
            task = asyncio.create_task(self._renderers.pop(key).close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
