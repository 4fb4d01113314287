"""One streamed chat request through the router, as a person waits for it."""

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from router.commands.client import CommandFailed, Place, broken, not_running, refused, silent
from router.commands.connection import CONNECT_TIMEOUT_S, Answered

Message = dict[str, str]

_SILENCE_S = 120.0
"""Longest silence of a stream; the router fills shorter ones with comments."""
_FLEET_COMMENT = re.compile(r"fleet node=(\S+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer and what it took, as measured here."""

    text: str
    node: str
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_s: float | None
    """Until the first content; None where there was none."""
    decode_s: float
    """From the first content to the last."""


class Hears(Protocol):
    """Whoever follows an answer."""

    def comment(self, words: str) -> None:
        """What fills the silence before it: how far the load of its model is."""

    def text(self, text: str) -> None:
        """The next piece of its content."""


class _Key(httpx.Auth):
    """The key that `read` gives; who found none, and is refused, looks once more."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        key = self._read()
        if key:
            request.headers["authorization"] = f"Bearer {key}"
        response = yield request
        if response.status_code == 401 and not key and (key := self._read()):
            request.headers["authorization"] = f"Bearer {key}"
            yield request


@dataclass(slots=True)
class _Stream:
    """What has been read of an answer."""

    started_s: float
    node: str
    parts: list[str]
    usage: dict[str, Any]
    first_s: float | None = None
    last_s: float = 0.0
    whole: bool = False


class Chat:
    """Sends chat requests with this machine's key."""

    def __init__(self, place: Place, transport: httpx.BaseTransport | None = None) -> None:
        self.place = place
        self._http = httpx.Client(
            base_url=place.url,
            # Reading the system's certificates takes longer than asking a router without TLS.
            verify=place.url.startswith("https:"),
            auth=_Key(place.inference_key),
            timeout=httpx.Timeout(_SILENCE_S, connect=CONNECT_TIMEOUT_S),
            # Proxies of the environment are for the internet.
            trust_env=False,
            transport=transport,
        )

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def ask(
        self,
        model: str,
        messages: Sequence[Message],
        hears: Hears,
        temperature: float | None = None,
    ) -> Answer:
        """Streams one answer. Raises `CommandFailed`, also where it breaks off in the middle."""
        body: dict[str, object] = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if temperature is not None:
            body["temperature"] = temperature
        started_s = time.monotonic()
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    answer = Answered(str(response.url), response.status_code, response.read())
                    raise refused(self.place, answer, self.place.first_key_file)
                stream = _Stream(started_s, response.headers.get("x-fleet-node", "?"), [], {})
                _read(stream, response.iter_lines(), hears)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise not_running(self.place) from error
        except httpx.TimeoutException as error:
            raise silent(self.place) from error
        except httpx.HTTPError as error:
            raise broken(self.place, error) from error
        return _answer(stream)


def _read(stream: _Stream, lines: Iterable[str], hears: Hears) -> None:
    for line in lines:
        field, _, value = line.partition(":")
        if field == "" and (found := _FLEET_COMMENT.search(value)):
            stream.node = found[1]
        elif field == "" and (words := value.strip()):
            hears.comment(words)
        elif field == "data" and value.strip() == "[DONE]":
            stream.whole = True
        elif field == "data":
            for text in _texts(stream, value):
                stream.last_s = time.monotonic()
                stream.first_s = stream.first_s or stream.last_s
                stream.parts.append(text)
                hears.text(text)
    if not stream.whole:
        raise CommandFailed("The answer broke off before its end.")


def _texts(stream: _Stream, data: str) -> list[str]:
    """The content of one chunk."""
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            raise CommandFailed(str(chunk["error"]["message"]))
        stream.usage = chunk.get("usage") or stream.usage
        deltas = [choice.get("delta") or {} for choice in chunk.get("choices", ())]
        return [delta["content"] for delta in deltas if delta.get("content")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(f"The answer holds a chunk that is none: {data.strip()}") from error


def _answer(stream: _Stream) -> Answer:
    return Answer(
        text="".join(stream.parts),
        node=stream.node,
        prompt_tokens=stream.usage.get("prompt_tokens"),
        completion_tokens=stream.usage.get("completion_tokens"),
        ttft_s=None if stream.first_s is None else stream.first_s - stream.started_s,
        decode_s=0.0 if stream.first_s is None else stream.last_s - stream.first_s,
    )


def summary(answer: Answer) -> str:
    """Where an answer came from and how fast, as one line."""
    parts = [f"node {answer.node}"]
    if answer.prompt_tokens is not None and answer.completion_tokens is not None:
        parts.append(f"{answer.prompt_tokens} + {answer.completion_tokens} tokens")
    if answer.ttft_s is not None:
        parts.append(f"TTFT {answer.ttft_s:.2f} s")
    if answer.completion_tokens and answer.ttft_s is not None:
        parts.append(
            f"{_rate(answer.completion_tokens, answer.ttft_s, answer.decode_s):.1f} tokens/s"
        )
    return " · ".join(parts)


def _rate(tokens: int, ttft_s: float, decode_s: float) -> float:
    """Tokens per second after the first; over the whole wait where all came at once."""
    if tokens > 1 and decode_s > 0:
        return (tokens - 1) / decode_s
    return tokens / max(ttft_s, 1e-6)
