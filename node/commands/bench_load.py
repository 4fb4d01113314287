"""Measurements of `node-agent bench`: streams, prompts and sessions against any OpenAI server."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from node.commands.agent_client import CommandFailed, ServerAddress, refusal, unreachable

CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 600.0
_SYLLABLES = [
    *("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo"),
    *("nu", "pa", "re", "si", "to", "vu", "wa", "ye", "zi"),
]
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")

Message = dict[str, str]


@dataclass(slots=True)
class StreamedResponse:
    """One streamed response. Times are of this machine's monotonic clock."""

    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    """Time when it was complete; None if it was not read to its end."""
    times_s: list[float] = field(default_factory=list)
    """Times when its chunks arrived."""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """None if the server does not report it."""
    tokens: int = 0
    """Tokens of the response as the server counts them; the number of chunks if it does not."""

    @property
    def ttft_s(self) -> float:
        """Seconds until the first chunk; until the end if there is none."""
        return [*self.times_s, self.ended_s or time.monotonic()][0] - self.started_s


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
        self._model = model
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            transport=transport,
        )
        # The seed differs in each run, so that no prompt is in a cache yet.
        self._random = random.Random()
        self._tokens_per_word = 2.0

    async def close(self) -> None:
        await self._client.aclose()

    async def calibrate(self) -> None:
        """Loads the model, and measures the tokens per word of a long prompt."""
        few, many = await self._count(10), await self._count(110)
        if many > few:
            self._tokens_per_word = (many - few) / 100

    async def streams(self, count: int, max_tokens: int) -> Streams:
        """Measures `count` responses of `max_tokens` at once."""
        began_s = time.monotonic()
        responses = await asyncio.gather(
            *(self._request(self._task(), max_tokens) for _ in range(count))
        )
        tokens = sum(streamed.tokens for streamed in responses)
        ttft_s = statistics.median(streamed.ttft_s for streamed in responses)
        return Streams(tokens / (time.monotonic() - began_s), ttft_s)

    async def repeat(self, prompt_tokens: int) -> Repeat:
        """Measures a prompt of about so many tokens, twice."""
        messages = self._long(prompt_tokens)
        cold = await self._request(messages, 1)
        again = await self._request(messages, 1)
        return Repeat(cold.prompt_tokens, cold.ttft_s, again.ttft_s)

    async def stall(self, count: int, max_tokens: int, prompt_tokens: int) -> Stall:
        """Measures a long prompt while `count` responses are streamed."""
        responses = [StreamedResponse() for _ in range(count)]
        begun = [asyncio.Event() for _ in responses]
        tasks = [
            asyncio.create_task(self._fill(streamed, self._task(), max_tokens, event))
            for streamed, event in zip(responses, begun, strict=True)
        ]
        try:
            await asyncio.gather(*(event.wait() for event in begun))
            asked_s = time.monotonic()
            long = await self._request(self._long(prompt_tokens), 1)
            done_s = asked_s + long.ttft_s
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, CommandFailed):
                raise end
        gaps = [worst_gap(streamed, asked_s, done_s) for streamed in responses]
        worst_s = max((gap for gap in gaps if gap is not None), default=None)
        return Stall(long.prompt_tokens, long.ttft_s, worst_s)

    async def sessions(
        self, count: int, turns: int, system_tokens: int, max_tokens: int
    ) -> Sessions:
        """Measures `count` chats of `turns` questions each, over one system message."""
        system = {"role": "system", "content": self._words(system_tokens)}
        began_s = time.monotonic()
        chats = await asyncio.gather(
            *(self._session(system, turns, max_tokens) for _ in range(count))
        )
        responses = [streamed for chat in chats for streamed in chat]
        cached = [streamed.cached_tokens for streamed in responses]
        known = [tokens for tokens in cached if tokens is not None]
        return Sessions(
            wall_s=time.monotonic() - began_s,
            prompt_tokens=sum(streamed.prompt_tokens for streamed in responses),
            cached_tokens=sum(known) if known else None,
        )

    async def _session(
        self, system: Message, turns: int, max_tokens: int
    ) -> list[StreamedResponse]:
        messages, responses = [system], []
        for _ in range(turns):
            messages.append({"role": "user", "content": self._words(20)})
            responses.append(await self._request(messages, max_tokens))
            messages.append({"role": "assistant", "content": responses[-1].text})
        return responses

    def _task(self) -> list[Message]:
        about = self._words(4)
        text = f"Write a very long story about {about}. Number every sentence, and do not stop."
        return [{"role": "user", "content": text}]

    def _long(self, tokens: int) -> list[Message]:
        return [{"role": "user", "content": self._words(tokens)}]

    def _words(self, tokens: int) -> str:
        """Text of about so many tokens."""
        choice = self._random.choice
        count = max(round(tokens / self._tokens_per_word), 1)
        return " ".join(choice(_SYLLABLES) + choice(_SYLLABLES) for _ in range(count))

    async def _count(self, words: int) -> int:
        text = self._words(round(words * self._tokens_per_word))
        return (await self._request([{"role": "user", "content": text}], 1)).prompt_tokens

    async def _request(self, messages: Sequence[Message], max_tokens: int) -> StreamedResponse:
        streamed = StreamedResponse()
        await self._fill(streamed, messages, max_tokens, asyncio.Event())
        return streamed

    async def _fill(
        self,
        streamed: StreamedResponse,
        messages: Sequence[Message],
        max_tokens: int,
        begun: asyncio.Event,
    ) -> None:
        """Reads a response to its end; sets `begun` at its first chunk, or if there is none."""
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self._server.url}/v1/chat/completions"
        try:
            async with self._client.stream("POST", url, json=body) as response:
                if not response.is_success:
                    await response.aread()
                    raise CommandFailed(refusal(response))
                async for line in response.aiter_lines():
                    name, _, value = line.partition(":")
                    if name == "data" and value.strip() != "[DONE]":
                        _add(streamed, value)
                    if streamed.times_s:
                        begun.set()
            streamed.ended_s = time.monotonic()
        except httpx.HTTPError as exc:
            raise unreachable(self._server, exc) from exc
        finally:
            begun.set()


def _add(streamed: StreamedResponse, data: str) -> None:
    """Adds a chunk to the response. Raises `CommandFailed` for an error or an invalid chunk."""
    try:
        chunk = json.loads(data)
        if chunk.get("error"):
            raise CommandFailed(f"The response broke off: {chunk['error']}")
        if usage := chunk.get("usage"):
            streamed.prompt_tokens = usage.get("prompt_tokens") or 0
            streamed.tokens = usage.get("completion_tokens") or streamed.tokens
            details = usage.get("prompt_tokens_details") or {}
            streamed.cached_tokens = details.get("cached_tokens")
        deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
        texts = [delta.get(name) for delta in deltas for name in _TEXT_FIELDS if delta.get(name)]
    except (ValueError, AttributeError, TypeError) as exc:
        raise CommandFailed(f"The response has an invalid chunk: {data.strip()}") from exc
    if texts:
        streamed.times_s.append(time.monotonic())
        streamed.tokens = max(streamed.tokens, len(streamed.times_s))
        streamed.text += "".join(delta.get("content") or "" for delta in deltas)


def worst_gap(streamed: StreamedResponse, begin_s: float, end_s: float) -> float | None:
    """The longest silence of a stream that overlaps that time; None if the stream had ended
    before."""
    times_s = streamed.times_s if streamed.ended_s else [*streamed.times_s, end_s]
    gaps = [
        later_s - earlier_s
        for earlier_s, later_s in zip(times_s, times_s[1:], strict=False)
        if later_s > begin_s and earlier_s < end_s
    ]
    return max(gaps, default=None)
