"""The connections for control calls to one node: requests with its credential, within bounds of
size and time, and errors in words."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec

from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import ControlError
from node.protocol.versions import SPOKEN, read_version
from router.errors import (
    CertificateChanged,
    NodeOutdated,
    NodeRefused,
    NodeUnreachable,
    UnknownPath,
    WrongNodeProtocol,
    WrongNodeToken,
)
from router.pairing_errors import PAIRING_FAILURES
from router.settings import CONNECT_TIMEOUT_S, CONTROL_TIMEOUT_S
from router.upstream.credentials import NodeCredential
from router.upstream.host_name import NEXT_ADDRESS_S, HostName, Resolver
from router.upstream.http_client import IDLE_S
from serving.unreached import Cause, cause_of, sentence_of

_CONTROL_BYTES = 4 * 1024 * 1024
"""Longest response to a control call: a status, a manifest, a list of models, an error."""

NO_TOKEN = (
    "The node requires its token, and none was given: `router add-node … --token TOKEN`. The agent "
    "keeps it in the file `token` of its folder; `node-agent token` there shows it."
)
NOT_PAIRED = (
    "The node is no longer paired with this router. `node-agent pair` on its machine shows a code; "
    "`router rotate-node NODE --code CODE` pairs it again."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is, and how it is known."""

    url: str
    host: HostName
    pin: ssl.SSLContext | None
    """None for plain HTTP, and for a server that is known by its name."""


T = TypeVar("T")


class _OtherVersion(WrongNodeProtocol):
    """The agent speaks another version, in which the request can be repeated."""


async def in_spoken_version(send: Callable[[], Awaitable[T]]) -> T:
    """Sends a request, and once more if the agent speaks another version that this router speaks,
    too."""
    try:
        return await send()
    except _OtherVersion:
        return await send()


class ControlChannel:
    """Sends requests to one node, on connections of its own."""

    def __init__(self, place: Place, credential: NodeCredential, *, is_agent: bool) -> None:
        self.url = place.url
        self._place = place
        self._is_agent = is_agent
        self.wire = SPOKEN.wire()
        """The version in which this agent speaks, as far as it is known."""
        self.set_credential(credential)
        self._session: aiohttp.ClientSession | None = None

    def set_credential(self, credential: NodeCredential) -> None:
        self._credential = credential

    def begin_in_newest(self) -> None:
        """Sends the next request in the newest version, as to an agent that is not known yet."""
        self.wire = SPOKEN.wire()

    def headers(self) -> dict[str, str]:
        return {HEADER_PROTOCOL: str(self.wire.version), **self._credential.headers()}

    async def close(self) -> None:
        """Closes all connections; the next call connects anew, and calls in progress fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=self._place.pin or True,
                    limit=0,
                    keepalive_timeout=IDLE_S,
                    resolver=Resolver(self._place.host),
                    use_dns_cache=False,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session

    async def control(
        self,
        method: str,
        path: str,
        command: msgspec.Struct | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> bytes:
        """Sends a control call and returns its response. Raises `NodeUnreachable`,
        `WrongNodeToken`, `WrongNodeProtocol`, `NodeRefused`, `PairingFailed`."""

        async def send() -> bytes:
            async with self.open_session.request(
                method,
                self.url + path,
                data=None if command is None else self.wire.encode(command),
                headers={**self.headers(), "content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                await self.check(response)
                return await self._read(response)

        try:
            return await in_spoken_version(send)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self.unreachable(error) from error

    async def check(self, response: aiohttp.ClientResponse) -> None:
        """Raises the node's refusal, if the response is one, as `control` does."""
        if response.status in (200, 202):
            return
        refusal = _refusal(await self._read(response))
        if failure := PAIRING_FAILURES.get(refusal.code):
            raise failure(refusal.message)
        if response.status in (401, 403):
            raise self._wrong_token()
        sentence = refusal.message
        if response.status == 426:
            raise self._other_version(response)(sentence)
        if response.status == 404 and refusal.code == UnknownPath.code and self._is_agent:
            raise NodeOutdated.at(self.url, response.url.path)
        hint = (
            "is it a node agent? Another server is added with --kind openai."
            if self._is_agent
            else "is it an OpenAI-compatible server?"
        )
        status_message = (
            f"{self.url} responded with status {response.status} to {response.url.path}; {hint}"
        )
        raise NodeRefused(sentence or status_message)

    def _other_version(self, response: aiohttp.ClientResponse) -> type[WrongNodeProtocol]:
        """Goes on in the version that the agent names, if the request was in another one."""
        theirs = read_version(response.headers.get(HEADER_PROTOCOL))
        sent = response.request_info.headers[HEADER_PROTOCOL]
        if theirs is None or theirs not in SPOKEN or str(theirs) == sent:
            return WrongNodeProtocol
        self.wire = SPOKEN.wire(theirs)
        return _OtherVersion

    def _wrong_token(self) -> WrongNodeToken:
        if self._credential.is_paired:
            return WrongNodeToken(NOT_PAIRED)
        return WrongNodeToken(None if self._credential.token else NO_TOKEN)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Reads the body of a control call's response."""
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _CONTROL_BYTES:
                response.close()
                raise NodeRefused(f"{self.url} sends more than {_CONTROL_BYTES >> 20} MiB.")
        return bytes(body)

    def decoded(self, body: bytes, kind: type[T]) -> T:
        """Decodes an agent's response. Raises `NodeRefused`."""
        try:
            return self.wire.decode(body, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NodeRefused(
                f"{self.url} does not respond like a node agent{why(error)}."
            ) from error

    def unreachable(self, error: Exception) -> NodeUnreachable:
        """Returns the error for a connection that failed with this one."""
        cause = cause_of(error, self._place.host.known)
        if cause is Cause.CERTIFICATE and self._place.pin is not None:
            return CertificateChanged(f"{self.url}: {CertificateChanged.__doc__}", cause=cause)
        sentence = sentence_of(cause, error)
        return NodeUnreachable(f"{self.url} cannot be reached: {sentence}", cause=cause)


def why(error: Exception) -> str:
    """Names the part of a message that breaks the protocol, as the end of a sentence; empty if no
    part is known."""
    return f": {error}" if isinstance(error, msgspec.ValidationError) else ""


def _refusal(body: bytes) -> ControlError:
    """Returns the node's reason; an empty one if the body has none."""
    try:
        return msgspec.json.decode(body, type=ControlError)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ControlError("")
