"""Prompts of the scripted engine. No code of a model's author takes part in them, so they are made
in the agent's own process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from node.parsing.selection import Formats
from node.prompt.chain_positions import bind
from node.prompt.length import is_longer
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.scripted_tokens import ScriptedRenderer
from serving.fair_shares import FairShares

THREAD_LENGTH = 16 * 1024
"""Characters above which a prompt is made in a thread, so that it stalls no stream."""

T = TypeVar("T")


class LocalRenderer:
    """Like `RemoteRenderer`, without a process."""

    def __init__(self, formats: Formats | None, threads: Executor, turns: FairShares) -> None:
        """`turns` shares the threads of `threads` among callers."""
        self._renderer = ScriptedRenderer(formats)
        self._threads = threads
        self._turns = turns

    def begin(self) -> None:
        """Does nothing: there is nothing to load."""

    async def open(self) -> None:
        """Does nothing: there is nothing to load."""

    async def close(self) -> None:
        """Does nothing: there is no process to end."""

    async def render(self, asked: RenderRequest) -> Prompt:
        """Makes the prompt. Raises `BadRequest`, `ContextTooLong`, or `TooManyWaiting`."""
        make = self._renderer.render_shared if asked.shared else self._renderer.render
        prompt = await self._run(asked, lambda: make(asked.request, asked.context_tokens))
        chain = None if asked.chain is None else await asked.chain.made()
        if chain is None:
            return prompt
        places = prompt.places
        return replace(prompt, positions=await self._run(asked, lambda: bind(chain, places)))

    async def _run(self, asked: RenderRequest, work: Callable[[], T]) -> T:
        if not is_longer(asked.request, THREAD_LENGTH):
            return work()
        async with self._turns.acquired(asked.caller, 1):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
