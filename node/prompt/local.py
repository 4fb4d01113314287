"""Prompts of the scripted engine. No code of a model's author takes part in them, so they are made
in the agent's own process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from node.parsing.selection import Formats
from node.prompt.chain_positions import position_tokens
from node.prompt.length import is_longer
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.scripted_tokens import ScriptedRenderer
from serving.fair_shares import FairShares

THREAD_LENGTH = 16 * 1024
"""Characters above which a prompt is made in a thread, so that it stalls no stream."""

T = TypeVar("T")


class LocalRenderer:
    """Like `RemoteRenderer`, without a process."""

    def __init__(self, formats: Formats | None, threads: Executor, shares: FairShares) -> None:
        """`shares` divides the threads of `threads` among callers."""
        self._renderer = ScriptedRenderer(formats)
        self._threads = threads
        self._shares = shares

    def begin(self) -> None:
        """Does nothing: there is nothing to load."""

    async def open(self) -> None:
        """Does nothing: there is nothing to load."""

    async def close(self) -> None:
        """Does nothing: there is no process to end."""

    async def render(self, render_request: RenderRequest) -> Prompt:
        """Makes the prompt. Raises `BadRequest`, `ContextTooLong`, or `TooManyWaiting`."""
        make = self._renderer.render_shared if render_request.shared else self._renderer.render
        prompt = await self._run(
            render_request, lambda: make(render_request.request, render_request.context_tokens)
        )
        chain = None if render_request.chain is None else await render_request.chain.compute()
        if chain is None:
            return prompt
        layout = prompt.layout
        return replace(
            prompt,
            positions=await self._run(render_request, lambda: position_tokens(chain, layout)),
        )

    async def _run(self, render_request: RenderRequest, work: Callable[[], T]) -> T:
        if not is_longer(render_request.request, THREAD_LENGTH):
            return work()
        async with self._shares.acquired(render_request.caller, 1):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
