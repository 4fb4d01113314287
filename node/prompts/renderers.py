"""The renderers of all models here, and the threads that render."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node.fair_shares import FairShares
from node.parsing.selection import Formats
from node.prompts.prompt import Prompt, Renderer, RenderRequest
from node.prompts.renderer import PromptRenderer
from node.prompts.scripted import ScriptedRenderer
from node.request import TextRequest
from node.template.places import length_of

THREAD_LENGTH = 16 * 1024
"""A prompt of more characters is rendered in a thread, so that it stalls no stream."""
MESSAGE_LENGTH = 32
"""What a message adds, in characters: a template takes its time for an empty one, too."""
RENDER_THREADS = 4


class Renderers:
    """One renderer for each model folder and its formats, loaded once however many wait; and the
    threads that render, which nothing else shares, so that nothing else waits for a long prompt."""

    def __init__(self) -> None:
        self._loads: dict[tuple[Path, Formats | None], asyncio.Future[Renderer]] = {}
        self._threads = ThreadPoolExecutor(RENDER_THREADS, thread_name_prefix="render")
        self._turns = FairShares(RENDER_THREADS)

    def close(self) -> None:
        """Renders no more; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, folder: Path, formats: Formats | None = None) -> asyncio.Future[Renderer]:
        """Starts the load of the folder's renderer, unless it is loaded or being loaded.
        `formats`: of the answers; None: as the folder tells."""
        key = (folder, formats)
        load = self._loads.get(key)
        if load is None or (load.done() and (load.cancelled() or load.exception() is not None)):
            load = self._loads[key] = asyncio.ensure_future(_load(folder, formats))
        return load

    async def get(self, folder: Path, formats: Formats | None = None) -> Renderer:
        """The folder's renderer; a scripted one for the empty path. Raises `LoadFailure`."""
        load = self.begin(folder, formats)
        if not load.done():
            # Unlike an await of the load, its end of waiting does not cancel it for the others.
            await asyncio.wait({load})
        return load.result()

    async def render(
        self, folder: Path, asked: RenderRequest, formats: Formats | None = None
    ) -> Prompt:
        """The prompt; made in a thread if it is long. Raises `BadRequest`, `ContextTooLong`,
        `LoadFailure`, or `TooManyWaiting` where the same caller has that many long ones."""
        renderer = await self.get(folder, formats)
        render = renderer.render_shared if asked.shared else renderer.render
        request, context_tokens = asked.request, asked.context_tokens
        if not _is_long(request):
            return render(request, context_tokens)
        async with self._turns.holding(asked.caller, 1):
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, render, request, context_tokens
            )


async def _load(folder: Path, formats: Formats | None) -> Renderer:
    if folder == Path():
        return ScriptedRenderer(formats)
    return await asyncio.to_thread(PromptRenderer, folder, formats)


def may_overflow(asked: RenderRequest) -> bool:
    """Whether the prompt may be longer than the model's context, as long as a character is no more
    than a token."""
    context_tokens = asked.context_tokens
    return context_tokens is not None and _is_longer(asked.request, context_tokens)


def _is_long(request: TextRequest) -> bool:
    """Whether the request is too much for the event loop's thread."""
    # Templates spell tools with programs of some size.
    return bool(request.messages is not None and request.tools) or _is_longer(
        request, THREAD_LENGTH
    )


def _is_longer(request: TextRequest, length: int) -> bool:
    """Whether its prompt has more characters, about."""
    if request.messages is None:
        return len(request.prompt or "") > length
    for message in request.messages:
        if length < 0:
            return True
        length -= length_of(message) + MESSAGE_LENGTH
    return length < 0
