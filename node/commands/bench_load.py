"""Measurements of `node-agent bench`: streams, prompts and sessions against any OpenAI server."""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from node.commands.agent_client import CommandFailed, ServerAddress, unreachable
from serving.chat.load import ChatLoad
from serving.chat.stream import Message, ResponseFailed, StreamedChat


@dataclass(frozen=True, slots=True)
class Streams:
    """Several responses at once."""

    tokens_per_s: float
    ttft_p50_s: float


@dataclass(frozen=True, slots=True)
class Repeat:
    """A prompt that the server has not seen, and the same prompt again."""

    prompt_tokens: int
    cold_ttft_s: float
    repeat_ttft_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """The effect of a long prompt on running streams."""

    prompt_tokens: int
    ttft_s: float
    """Time to first token of the long prompt."""
    worst_gap_s: float | None
    """Longest silence of a running stream during its prefill; None if all had ended before."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Chats that share a system message, all at once."""

    wall_s: float
    prompt_tokens: int
    cached_tokens: int | None


class BenchClient:
    """Requests for one model of one server. Every failure is a `CommandFailed`."""

    def __init__(self, server: ServerAddress, model: str, transport: Any = None) -> None:
        self._server = server
        self._load = ChatLoad(server.url, model, server.key, transport)

    async def close(self) -> None:
        await self._load.close()

    async def calibrate(self) -> None:
        """Loads the model, and measures the tokens per word of a long prompt."""
        with self._failing():
            await self._load.calibrate()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as exc:
            raise unreachable(self._server, exc) from exc
        except ResponseFailed as exc:
            raise CommandFailed(str(exc)) from exc

    async def streams(self, count: int, max_tokens: int) -> Streams:
        """Measures `count` responses of `max_tokens` at once."""
        began_s = time.monotonic()
        responses = await asyncio.gather(
            *(self._request(self._load.story(), max_tokens) for _ in range(count))
        )
        tokens = sum(streamed.tokens for streamed in responses)
        ttft_s = statistics.median(streamed.wait_s for streamed in responses)
        return Streams(tokens / (time.monotonic() - began_s), ttft_s)

    async def repeat(self, prompt_tokens: int) -> Repeat:
        """Measures a prompt of about so many tokens, twice."""
        messages = self._long(prompt_tokens)
        cold = await self._request(messages, 1)
        again = await self._request(messages, 1)
        return Repeat(cold.prompt_tokens or 0, cold.wait_s, again.wait_s)

    async def stall(self, count: int, max_tokens: int, prompt_tokens: int) -> Stall:
        """Measures a long prompt while `count` responses are streamed."""
        responses = [StreamedChat(time.monotonic()) for _ in range(count)]
        begun = [asyncio.Event() for _ in responses]
        tasks = [
            asyncio.create_task(self._fill(streamed, self._load.story(), max_tokens, event))
            for streamed, event in zip(responses, begun, strict=True)
        ]
        try:
            await asyncio.gather(*(event.wait() for event in begun))
            asked_s = time.monotonic()
            long = await self._request(self._long(prompt_tokens), 1)
            done_s = asked_s + long.wait_s
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, CommandFailed):
                raise end
        gaps = [worst_gap(streamed, asked_s, done_s) for streamed in responses]
        worst_s = max((gap for gap in gaps if gap is not None), default=None)
        return Stall(long.prompt_tokens or 0, long.wait_s, worst_s)

    async def sessions(
        self, count: int, turns: int, system_tokens: int, max_tokens: int
    ) -> Sessions:
        """Measures `count` chats of `turns` questions each, over one system message."""
        system = {"role": "system", "content": self._load.words(system_tokens)}
        began_s = time.monotonic()
        chats = await asyncio.gather(
            *(self._session(system, turns, max_tokens) for _ in range(count))
        )
        responses = [streamed for chat in chats for streamed in chat]
        cached = [streamed.cached_tokens for streamed in responses]
        known = [tokens for tokens in cached if tokens is not None]
        return Sessions(
            wall_s=time.monotonic() - began_s,
            prompt_tokens=sum(streamed.prompt_tokens or 0 for streamed in responses),
            cached_tokens=sum(known) if known else None,
        )

    async def _session(self, system: Message, turns: int, max_tokens: int) -> list[StreamedChat]:
        messages, responses = [system], []
        for _ in range(turns):
            messages.append({"role": "user", "content": self._load.words(20)})
            responses.append(await self._request(messages, max_tokens))
            messages.append({"role": "assistant", "content": responses[-1].text})
        return responses

    def _long(self, tokens: int) -> list[Message]:
        return [{"role": "user", "content": self._load.words(tokens)}]

    async def _request(self, messages: Sequence[Message], max_tokens: int) -> StreamedChat:
        with self._failing():
            return await self._load.request(messages, max_tokens)

    async def _fill(
        self,
        streamed: StreamedChat,
        messages: Sequence[Message],
        max_tokens: int,
        begun: asyncio.Event,
    ) -> None:
        with self._failing():
            await self._load.fill(streamed, messages, max_tokens, begun)


def worst_gap(streamed: StreamedChat, begin_s: float, end_s: float) -> float | None:
    """The longest silence of a stream that overlaps that time; None if the stream had ended
    before."""
    times_s = streamed.times_s if streamed.ended_s else [*streamed.times_s, end_s]
    gaps = [
        later_s - earlier_s
        for earlier_s, later_s in zip(times_s, times_s[1:], strict=False)
        if later_s > begin_s and earlier_s < end_s
    ]
    return max(gaps, default=None)
