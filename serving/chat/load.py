"""Load for benchmarks: streamed chat requests for one model of one OpenAI server, several at once,
with prompts of a given size that no cache has."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from serving.chat.stream import Message, ResponseFailed, StreamedChat, chat_body

CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 600.0
_PATH = "/v1/chat/completions"
_SYLLABLES = [
    *("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo"),
    *("nu", "pa", "re", "si", "to", "vu", "wa", "ye", "zi"),
]
_CALIBRATION_WORDS = (10, 110)


class ChatLoad:
    """Sends the requests. Raises `httpx.HTTPError` for a connection that fails, and
    `ResponseFailed` for a response that is refused, broken or invalid."""

    def __init__(
        self, url: str, model: str, key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url = url + _PATH
        self._model = model
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            # Loading the system's certificates takes longer than a request without TLS.
            verify=url.startswith("https:"),
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            # The environment's proxies are meant for the internet.
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
        few, many = [await self._count(words) for words in _CALIBRATION_WORDS]
        if many > few:
            self._tokens_per_word = (many - few) / (_CALIBRATION_WORDS[1] - _CALIBRATION_WORDS[0])

    def words(self, tokens: int) -> str:
        """Text of about so many tokens."""
        choice = self._random.choice
        count = max(round(tokens / self._tokens_per_word), 1)
        return " ".join(choice(_SYLLABLES) + choice(_SYLLABLES) for _ in range(count))

    def story(self, tokens: int = 4) -> list[Message]:
        """A prompt of at least so many tokens, whose response ends at its limit only."""
        about = self.words(tokens)
        text = f"Write a very long story about {about}. Number every sentence, and do not stop."
        return [{"role": "user", "content": text}]

    async def request(self, messages: Sequence[Message], max_tokens: int) -> StreamedChat:
        """Reads one response to its end."""
        streamed = StreamedChat(time.monotonic())
        await self.fill(streamed, messages, max_tokens, asyncio.Event())
        return streamed

    async def fill(
        self,
        streamed: StreamedChat,
        messages: Sequence[Message],
        max_tokens: int,
        begun: asyncio.Event,
    ) -> None:
        """Reads a response to its end; sets `begun` at its first content, or if there is none."""
        body = chat_body(self._model, messages, temperature=0, max_tokens=max_tokens)
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if not response.is_success:
                    await response.aread()
                    raise ResponseFailed(refusal(response))
                streamed.node = response.headers.get("x-fleet-node", "")
                async for line in response.aiter_lines():
                    streamed.read(line, time.monotonic())
                    if streamed.times_s:
                        begun.set()
            streamed.ended_s = time.monotonic()
        finally:
            begun.set()

    async def _count(self, words: int) -> int:
        text = self.words(round(words * self._tokens_per_word))
        streamed = await self.request([{"role": "user", "content": text}], 1)
        return streamed.prompt_tokens or 0


def refusal(response: httpx.Response) -> str:
    """The server's message in an error response whose body has been read."""
    try:
        body: Any = response.json()
        error = body.get("error", body)
        message = error if isinstance(error, str) else error.get("message") or body["detail"]
    except (ValueError, KeyError, AttributeError):
        message = " ".join(response.text.split())[:200] or response.reason_phrase
    return f"{message} (HTTP {response.status_code})"
