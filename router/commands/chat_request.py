"""Sends streamed chat requests through the router."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import httpx

from node.protocol.paths import PATH_CHAT
from router.commands.client import (
    AdminClient,
    CommandFailed,
    RouterAccess,
    broken,
    not_running,
    refused,
    silent,
)
from router.commands.connection import CONNECT_TIMEOUT_S, RouterResponse
from serving.chat.stream import (
    Message,
    Piece,
    ResponseFailed,
    StreamedChat,
    chat_body,
    summary,
)

_SILENCE_S = 120.0
"""Longest interval without data; the router sends comments more often."""


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


class Chat:
    """Sends chat requests with this machine's key. Every failure is a `ResponseFailed`."""

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

    def models(self) -> list[str]:
        """The names that requests with this machine's key may have."""
        with self._failing():
            key = self.access.inference_key()
            return [str(each["id"]) for each in AdminClient(self.access).models(key)]

    def stream(
        self, model: str, messages: Sequence[Message], temperature: float | None = None
    ) -> Generator[Piece, None, None]:
        """Yields a response as it arrives, and its summary. Raises `ResponseFailed`, also if it
        ends early."""
        body = chat_body(model, messages, temperature=temperature)
        streamed = StreamedChat(time.monotonic())
        with self._failing(), self._http.stream("POST", PATH_CHAT, json=body) as response:
            if not response.is_success:
                refusal = RouterResponse(str(response.url), response.status_code, response.read())
                raise refused(self.access, refusal, self.access.first_key_file)
            streamed.node = response.headers.get("x-fleet-node", "?")
            for line in response.iter_lines():
                yield from streamed.read(line, time.monotonic())
            streamed.require_whole()
        yield Piece("summary", summary(streamed))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turns every failure into a `ResponseFailed` that says what to do."""
        try:
            try:
                yield
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise not_running(self.access) from error
            except httpx.TimeoutException as error:
                raise silent(self.access) from error
            except httpx.HTTPError as error:
                raise broken(self.access, error) from error
        except CommandFailed as failed:
            raise ResponseFailed(failed.message) from failed
