"""The router's client of one node: control calls, the event stream, and inference requests."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from types import TracebackType

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError
from yarl import URL

from node.protocol.messages import (
    HEADER_ORIGIN,
    HEADER_PROTOCOL,
    HEADER_REQUEST_ID,
    HEADER_REQUESTED_MODEL,
    HEARTBEAT_S,
    PATH_EVENTS,
    PATH_LOAD,
    PATH_STATUS,
    PATH_UNLOAD,
    PROTOCOL_VERSION,
    ControlError,
    Event,
    ModelCommand,
    NodeStatus,
    decode_event,
    decode_status,
)
from registry.records import NodeRecord
from router.credentials import NodeCredential
from router.errors import NodeRefused, NodeUnreachable, WrongNodeProtocol, WrongNodeToken
from router.settings import CONNECT_TIMEOUT_S, CONTROL_TIMEOUT_S

KIND_AGENT = "agent"
KIND_OPENAI = "openai"

_EVENT_BYTES = 512 * 1024
"""A longer line of an event stream is no event."""
_ONE_WRITE_BYTES = 1 << 20
"""A larger body is sent in pieces, so that other requests get their turn between them."""
_KEEPALIVE_S = 30.0
"""Shorter than a node agent's own, so that it is the router that closes an idle connection."""


class ForeignModel(msgspec.Struct):
    id: str


class ForeignModels(msgspec.Struct):
    data: list[ForeignModel]


class NodeClient:
    """One node's connection pool. No pool is shared, so that one dead node blocks no other."""

    def __init__(self, url: str, credential: NodeCredential) -> None:
        self.url = url
        self._credential = credential
        self._control_headers = {
            HEADER_PROTOCOL: str(PROTOCOL_VERSION),
            **credential.headers(),
        }
        self._relay_urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, record: NodeRecord) -> NodeClient:
        return cls(record.url, NodeCredential.from_text(record.credential))

    async def __aenter__(self) -> NodeClient:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_probed_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session

    # --- inference ---

    async def open(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Sends an inference request; returns at the response's head, its body unread.

        Raises `aiohttp.ClientError` or `OSError` where the connection fails.
        """
        url = self._relay_urls.get(path)
        if url is None:
            url = self._relay_urls[path] = URL(self.url + path)
        data = body if len(body) <= _ONE_WRITE_BYTES else io.BytesIO(body)
        return await self.session.post(url, data=data, headers=headers, allow_redirects=False)

    def relay_headers(self, request_id: str, origin: str, asked_model: str) -> dict[str, str]:
        """All headers that go to a node: none of the caller's, so that its key never leaves."""
        return {
            **self._credential.headers(),
            "content-type": "application/json",
            "accept-encoding": "identity",
            HEADER_REQUEST_ID: request_id,
            HEADER_ORIGIN: origin,
            HEADER_REQUESTED_MODEL: asked_model,
        }

    # --- control ---

    async def status(self) -> NodeStatus:
        """The agent's status. Raises `NodeUnreachable`, `WrongNodeToken`, `WrongNodeProtocol`,
        `NodeRefused`."""
        body = await self._control("GET", PATH_STATUS)
        try:
            return decode_status(body)
        except msgspec.MsgspecError as error:
            raise NodeRefused(f"{self.url} does not answer like a node agent.") from error

    async def load(self, model: str) -> None:
        """Makes a model resident; returns when it is. Raises what `status` raises."""
        await self._control("POST", PATH_LOAD, ModelCommand(model), timeout_s=3600)

    async def unload(self, model: str) -> None:
        """Unloads an idle model. Raises what `status` raises."""
        await self._control("POST", PATH_UNLOAD, ModelCommand(model), timeout_s=60)

    async def foreign_models(self) -> list[str]:
        """Model ids of an OpenAI-compatible server. Raises what `status` raises."""
        body = await self._control("GET", "/v1/models")
        try:
            return [model.id for model in msgspec.json.decode(body, type=ForeignModels).data]
        except msgspec.MsgspecError as error:
            raise NodeRefused(f"{self.url}/v1/models does not list models.") from error

    async def events(self, instance_id: str, after: int) -> AsyncIterator[Event]:
        """The agent's event stream from `after` on; ends when the connection does.

        Raises what `status` raises, and `NodeUnreachable` after three silent heartbeats.
        """
        query = {"instance": instance_id, "after": str(after)}
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=3 * HEARTBEAT_S
        )
        try:
            async with self.session.get(
                self.url + PATH_EVENTS,
                params=query,
                headers=self._control_headers,
                timeout=timeout,
                allow_redirects=False,
                read_bufsize=_EVENT_BYTES,
            ) as response:
                await self._check(response)
                async for line in response.content:
                    yield decode_event(line)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, HttpProcessingError) as error:
            raise NodeRefused(f"{self.url} sent an event that is not one.") from error

    async def _control(
        self,
        method: str,
        path: str,
        command: ModelCommand | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> bytes:
        try:
            async with self.session.request(
                method,
                self.url + path,
                data=None if command is None else msgspec.json.encode(command),
                headers={**self._control_headers, "content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                await self._check(response)
                return await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 200:
            return
        body = await response.read()
        if response.status in (401, 403):
            raise WrongNodeToken
        sentence = _sentence(body)
        if response.status == 426:
            raise WrongNodeProtocol(sentence)
        raise NodeRefused(
            sentence
            or f"{self.url} answered {response.status} to {response.url.path}; "
            "is it a node agent? Another server is added with --kind openai."
        )

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        if isinstance(error, asyncio.TimeoutError):
            return NodeUnreachable(f"{self.url} does not answer in time.")
        return NodeUnreachable(
            f"{self.url} cannot be reached ({error or type(error).__name__}); "
            "is node-agent running there, and is the port right?"
        )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose connection breaks some 30 s after its peer has lost power or network: an
    answer may be silent for long, so no timeout can tell."""
    family, kind, proto, _name, _address = address
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("IDLE", 15), ("ALIVE", 15), ("INTVL", 5), ("CNT", 3)):
        # macOS says TCP_KEEPALIVE where others say TCP_KEEPIDLE.
        number = getattr(socket, "TCP_KEEP" + option, None)
        if number is not None:
            made.setsockopt(socket.IPPROTO_TCP, number, value)
    return made


def _sentence(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=ControlError).message
    except msgspec.MsgspecError:
        return None
