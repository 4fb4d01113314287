"""Control calls to one node, and its event stream."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError

from node.protocol.bounds import MAX_EVENT_BYTES
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.lifecycle import (
    PATH_CLEAR_CACHE,
    PATH_POLICIES,
    PATH_PULL,
    PATH_PULL_CANCEL,
    PATH_REMOVE,
    PATH_SHARE,
    PATH_UNLOAD,
    ClearCommand,
    ClearedCache,
    Policies,
    PullCommand,
    Share,
    UnloadCommand,
)
from node.protocol.messages import (
    HEARTBEAT_S,
    PATH_EVENTS,
    PATH_LOAD,
    PATH_METRICS,
    PATH_STATUS,
    ControlError,
    Event,
    ModelCommand,
    NodeStatus,
)
from node.protocol.pairing import (
    PATH_LEAVE,
    PATH_PAIR,
    PATH_ROTATE,
    NewSecret,
    PairReply,
    PairRequest,
)
from node.protocol.paths import PATH_MODELS
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
from router.upstream.foreign_list import listed_names
from router.upstream.host_name import NEXT_ADDRESS_S, HostName, Resolver
from router.upstream.http_client import IDLE_S
from router.upstream.node_events import NodeEvents
from serving.unreached import Cause, cause_of, sentence_of

_CONTROL_BYTES = 4 * 1024 * 1024
"""Longest response to a control call: a status, a manifest, a list of models, an error."""
CLEAR_TIMEOUT_S = 240.0
"""An engine deletes its files on disk one after another."""
PAIR_TIMEOUT_S = 20.0
"""Both sides compute the proofs meanwhile, and one agent pairs one router at a time."""

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


async def _spoken(send: Callable[[], Awaitable[T]]) -> T:
    """Sends a request, and once more if the agent speaks another version that this router speaks,
    too."""
    try:
        return await send()
    except _OtherVersion:
        return await send()


class ControlClient:
    """Sends control calls to one node and reads its events, on connections of their own."""

    def __init__(self, place: Place, credential: NodeCredential, *, is_agent: bool) -> None:
        self.url = place.url
        self._place = place
        self._is_agent = is_agent
        self._wire = SPOKEN.wire()
        """The version in which this agent speaks, as far as it is known."""
        self.set_credential(credential)
        self._events = NodeEvents(place.url)
        self._session: aiohttp.ClientSession | None = None

    def set_credential(self, credential: NodeCredential) -> None:
        self._credential = credential

    def _headers(self) -> dict[str, str]:
        return {HEADER_PROTOCOL: str(self._wire.version), **self._credential.headers()}

    async def close(self) -> None:
        """Closes all connections; the next call connects anew, and calls in progress fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
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

    # --- control calls ---

    async def status(self) -> NodeStatus:
        """Reads the agent's status. Raises `NodeUnreachable`, `WrongNodeToken`,
        `WrongNodeProtocol`, `NodeRefused`."""
        return self._decoded(await self._control("GET", PATH_STATUS), NodeStatus)

    async def metrics(self) -> bytes:
        """Reads the agent's figures in Prometheus's format. Raises what `status` raises."""
        return await self._control("GET", PATH_METRICS)

    async def load(self, model: str) -> None:
        """Loads a model; returns when it is loaded. Raises what `status` raises."""
        await self._control("POST", PATH_LOAD, ModelCommand(model), timeout_s=3600)

    async def unload(
        self, model: str, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Unloads an idle model: with `generation` only this load of it, with `min_idle_s` only if
        it has been idle for that long. Raises what `status` raises."""
        command = UnloadCommand(model, generation, min_idle_s)
        await self._control("POST", PATH_UNLOAD, command, timeout_s=60)

    async def clear_cache(self, model: str | None) -> ClearedCache:
        """Deletes the stored KV of the model, or of all that are loaded. Raises what `status`
        raises."""
        command = ClearCommand(model)
        body = await self._control("POST", PATH_CLEAR_CACHE, command, timeout_s=CLEAR_TIMEOUT_S)
        return self._decoded(body, ClearedCache)

    async def set_policies(self, policies: Policies) -> None:
        """Sends the agent this router's residency policies. Raises what `status` raises."""
        await self._control("POST", PATH_POLICIES, policies)

    async def pull(self, command: PullCommand) -> NodeStatus:
        """Starts or continues a pull; returns the status after that. Raises what `status`
        raises."""
        return self._decoded(await self._control("POST", PATH_PULL, command), NodeStatus)

    async def pull_cancel(self, model: str) -> None:
        """Cancels a pull and deletes what has arrived. Raises what `status` raises."""
        await self._control("POST", PATH_PULL_CANCEL, ModelCommand(model), timeout_s=60)

    async def remove(self, model: str) -> None:
        """Deletes a model from the node's disk. Raises what `status` raises."""
        await self._control("POST", PATH_REMOVE, ModelCommand(model), timeout_s=600)

    async def share(self, model: str) -> Share:
        """Returns what a peer needs to copy the model; the first call hashes its files. Raises what
        `status` raises."""
        body = await self._control("POST", PATH_SHARE, ModelCommand(model), timeout_s=3600)
        return self._decoded(body, Share)

    async def pair(self, request: PairRequest) -> PairReply:
        """Pairs this router. Raises `PairingFailed`, and what `status` raises."""
        body = await self._control("POST", PATH_PAIR, request, timeout_s=PAIR_TIMEOUT_S)
        return self._decoded(body, PairReply)

    async def rotate(self) -> str:
        """Returns a new secret for this router; its first use makes the present one void. Raises
        what `status` raises."""
        return self._decoded(await self._control("POST", PATH_ROTATE), NewSecret).secret

    async def leave(self) -> None:
        """Ends the pairing with this router. Raises what `status` raises."""
        await self._control("POST", PATH_LEAVE)

    async def foreign_models(self) -> list[str]:
        """Lists the model ids of a third-party server (`listed_names`). Raises what `status`
        raises."""
        return listed_names(await self._control("GET", PATH_MODELS), self.url + PATH_MODELS)

    async def events(self, instance_id: str, after: int) -> AsyncGenerator[Event, None]:
        """Yields the agent's events from `after` on; ends when the connection does.

        Raises what `status` raises, and `NodeUnreachable` after three missing heartbeats.
        """
        try:
            async with await self._begun(instance_id, after) as response:
                wire = self._wire
                async for line in response.content:
                    event = self._events.read(line, wire)
                    if event is not None:
                        yield event
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, HttpProcessingError) as error:
            raise NodeRefused(f"{self.url} sent an event that is not one{_why(error)}.") from error

    async def _begun(self, instance_id: str, after: int) -> aiohttp.ClientResponse:
        """Begins an event stream. An agent that was upgraded meanwhile has ended the one before, so
        each begins in the newest version."""
        self._wire = SPOKEN.wire()
        query = {"instance": instance_id, "after": str(after)}
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=3 * HEARTBEAT_S
        )

        async def begin() -> aiohttp.ClientResponse:
            response = await self._open_session.get(
                self.url + PATH_EVENTS,
                params=query,
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
                read_bufsize=MAX_EVENT_BYTES // 2,  # a line may be twice as long
            )
            try:
                await self._check(response)
            except BaseException:
                response.close()
                raise
            return response

        return await _spoken(begin)

    async def _control(
        self,
        method: str,
        path: str,
        command: msgspec.Struct | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> bytes:
        async def send() -> bytes:
            async with self._open_session.request(
                method,
                self.url + path,
                data=None if command is None else self._wire.encode(command),
                headers={**self._headers(), "content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                await self._check(response)
                return await self._read(response)

        try:
            return await _spoken(send)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
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
        self._wire = SPOKEN.wire(theirs)
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

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return self._wire.decode(body, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._not_an_agent(error) from error

    def _not_an_agent(self, error: Exception) -> NodeRefused:
        return NodeRefused(f"{self.url} does not respond like a node agent{_why(error)}.")

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        cause = cause_of(error, self._place.host.known)
        if cause is Cause.CERTIFICATE and self._place.pin is not None:
            return CertificateChanged(f"{self.url}: {CertificateChanged.__doc__}", cause=cause)
        sentence = sentence_of(cause, error)
        return NodeUnreachable(f"{self.url} cannot be reached: {sentence}", cause=cause)


def _why(error: Exception) -> str:
    """Names the part of a message that breaks the protocol, as the end of a sentence; empty if no
    part is known."""
    return f": {error}" if isinstance(error, msgspec.ValidationError) else ""


def _refusal(body: bytes) -> ControlError:
    """Returns the node's reason; an empty one if the body has none."""
    try:
        return msgspec.json.decode(body, type=ControlError)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ControlError("")
