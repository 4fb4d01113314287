"""Sends one streamed chat request through the router."""

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from node.protocol.paths import PATH_CHAT
from router.commands.client import CommandFailed, RouterAccess, broken, not_running, refused, silent
from router.commands.connection import CONNECT_TIMEOUT_S, RouterResponse

Message = dict[str, str]

_SILENCE_S = 120.0
"""Longest interval without data; the router sends comments more often."""
_FLEET_COMMENT = re.compile(r"fleet node=(\S+)")


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A whole response and its timing, as measured here."""

    text: str
    node: str
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_s: float | None
    """Seconds until the first content; None if there was none."""
    decode_s: float
    """Seconds from the first content to the last."""


class ResponseListener(Protocol):
    """Receives the parts of a response as they arrive."""

    def comment(self, words: str) -> None:
        """Receives a comment that the router sends while there is no content, such as a load's
        progress."""

    def text(self, text: str) -> None:
        """Receives the next piece of the content."""


class _Key(httpx.Auth):
    """Sends the key that `read` returns; if it returned none and the response is 401, reads once
    more."""

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
    """The part of a response that has been read."""

    started_s: float
    node: str
    parts: list[str]
    usage: dict[str, Any]
    first_s: float | None = None
    last_s: float = 0.0
    whole: bool = False


class Chat:
    """Sends chat requests with this machine's key."""

    def __init__(self, access: RouterAccess, transport: httpx.BaseTransport | None = None) -> None:
        self.access = access
        self._http = httpx.Client(
            base_url=access.url,
            # Loading the system's certificates takes longer than a request without TLS.
            verify=access.url.startswith("https:"),
            auth=_Key(access.inference_key),
            timeout=httpx.Timeout(_SILENCE_S, connect=CONNECT_TIMEOUT_S),
            # The environment's proxies are meant for the internet.
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
        listener: ResponseListener,
        temperature: float | None = None,
    ) -> ChatResponse:
        """Streams one response. Raises `CommandFailed`, also if it ends early."""
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
            with self._http.stream("POST", PATH_CHAT, json=body) as response:
                if not response.is_success:
                    refusal = RouterResponse(
                        str(response.url), response.status_code, response.read()
                    )
                    raise refused(self.access, refusal, self.access.first_key_file)
                stream = _Stream(started_s, response.headers.get("x-fleet-node", "?"), [], {})
                _read(stream, response.iter_lines(), listener)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise not_running(self.access) from error
        except httpx.TimeoutException as error:
            raise silent(self.access) from error
        except httpx.HTTPError as error:
            raise broken(self.access, error) from error
        return _whole_response(stream)


def _read(stream: _Stream, lines: Iterable[str], listener: ResponseListener) -> None:
    for line in lines:
        field, _, value = line.partition(":")
        if field == "" and (found := _FLEET_COMMENT.search(value)):
            stream.node = found[1]
        elif field == "" and (words := value.strip()):
            listener.comment(words)
        elif field == "data" and value.strip() == "[DONE]":
            stream.whole = True
        elif field == "data":
            for text in _texts(stream, value):
                stream.last_s = time.monotonic()
                stream.first_s = stream.first_s or stream.last_s
                stream.parts.append(text)
                listener.text(text)
    if not stream.whole:
        raise CommandFailed("The response ended early.")


def _texts(stream: _Stream, data: str) -> list[str]:
    """Returns the content of one chunk."""
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            raise CommandFailed(str(chunk["error"]["message"]))
        stream.usage = chunk.get("usage") or stream.usage
        deltas = [choice.get("delta") or {} for choice in chunk.get("choices", ())]
        return [delta["content"] for delta in deltas if delta.get("content")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(f"The response has an invalid chunk: {data.strip()}") from error


def _whole_response(stream: _Stream) -> ChatResponse:
    return ChatResponse(
        text="".join(stream.parts),
        node=stream.node,
        prompt_tokens=stream.usage.get("prompt_tokens"),
        completion_tokens=stream.usage.get("completion_tokens"),
        ttft_s=None if stream.first_s is None else stream.first_s - stream.started_s,
        decode_s=0.0 if stream.first_s is None else stream.last_s - stream.first_s,
    )


def summary(response: ChatResponse) -> str:
    """Describes the node and the speed of a response in one line."""
    parts = [f"node {response.node}"]
    if response.prompt_tokens is not None and response.completion_tokens is not None:
        parts.append(f"{response.prompt_tokens} + {response.completion_tokens} tokens")
    if response.ttft_s is not None:
        parts.append(f"TTFT {response.ttft_s:.2f} s")
    if response.completion_tokens and response.ttft_s is not None:
        parts.append(
            f"{_rate(response.completion_tokens, response.ttft_s, response.decode_s):.1f} tokens/s"
        )
    return " · ".join(parts)


def _rate(tokens: int, ttft_s: float, decode_s: float) -> float:
    """Tokens per second after the first; over the whole wait if all arrived at once."""
    if tokens > 1 and decode_s > 0:
        return (tokens - 1) / decode_s
    return tokens / max(ttft_s, 1e-6)
