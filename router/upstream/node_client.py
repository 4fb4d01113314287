"""The router's client of one node: control calls, the event stream, and inference requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError

from node.protocol.bounds import MAX_EVENT_BYTES, NAME_CHARS
from node.protocol.lifecycle import (
    PATH_POLICIES,
    PATH_PULL,
    PATH_PULL_CANCEL,
    PATH_REMOVE,
    PATH_SHARE,
    PATH_UNLOAD,
    Policies,
    PullCommand,
    Share,
    UnloadCommand,
)
from node.protocol.messages import (
    HEADER_ORIGIN,
    HEADER_PROOF,
    HEADER_PROTOCOL,
    HEADER_REQUEST_ID,
    HEADER_REQUESTED_MODEL,
    HEADER_SALT,
    HEARTBEAT_S,
    PATH_EVENTS,
    PATH_LOAD,
    PATH_STATUS,
    PROTOCOL_VERSION,
    ControlError,
    Event,
    ModelCommand,
    NodeStatus,
    decode_status,
)
from node.protocol.names import is_name
from registry.records import NodeRecord
from router.errors import NodeRefused, NodeUnreachable, WrongNodeProtocol, WrongNodeToken
from router.settings import CONNECT_TIMEOUT_S, CONTROL_TIMEOUT_S
from router.states import KIND_AGENT
from router.types import Lease, Ticket
from router.upstream.credentials import NodeCredential
from router.upstream.host_name import NEXT_ADDRESS_S, Resolver
from router.upstream.http_client import IDLE_S, Upstream
from router.upstream.http_response import CutOff, Response, UpstreamBroken
from router.upstream.node_events import NodeEvents
from router.upstream.origins import Stamp
from serving.unreached import cause_of, sentence_of

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of an answer that is read whole; a stored response holds its input, too."""
_CONTROL_BYTES = 4 * 1024 * 1024
"""Of the answer to a control call: a status, a manifest, a list of models, a refusal."""
_LIST_COMMAS = 100_000
"""Of a list of models. The loop is held while one is decoded, and it is the number of values that
makes that long."""
MAX_FOREIGN_MODELS = 1000
_NAME_BYTES = 2 + 12 * NAME_CHARS
"""Of its JSON, each character as two escapes."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that has been read."""

    status: int
    headers: dict[bytes, bytes]
    """By name in lower case."""
    body: bytes


class ForeignModels(msgspec.Struct):
    """What a server of others lists; null is what Ollama says that has none."""

    data: list[msgspec.Raw] | None


class _ForeignModel(msgspec.Struct):
    id: msgspec.Raw


NO_TOKEN = (
    "The node wants its token, and none was given: `router add-node … --token TOKEN`. The agent "
    "keeps it in the file `token` of its folder; `node-agent token` there shows it."
)


class NodeClient:
    """One node's connection pool. No pool is shared, so that one dead node blocks no other."""

    def __init__(self, url: str, credential: NodeCredential, kind: str = KIND_AGENT) -> None:
        self.url = url
        self._is_agent = kind == KIND_AGENT
        self._credential = credential
        self._control_headers = {HEADER_PROTOCOL: str(PROTOCOL_VERSION), **credential.headers()}
        self._upstream = Upstream(url)
        self._events = NodeEvents(url)
        self._relay_starts: dict[str, bytes] = {}
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, record: NodeRecord) -> NodeClient:
        return cls(record.url, NodeCredential.from_text(record.credential), record.kind)

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
        self._upstream.close()
        if self._session is not None:
            await self._session.close()

    async def renew(self) -> None:
        """Connects anew for all that is asked from now on; control calls that run fail."""
        self._upstream.renew()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def addresses(self) -> list[str]:
        """What the node's name resolved to last, in the order in which they are tried."""
        return self._upstream.host.known

    def break_all(self) -> None:
        """Fails the inference requests that the node carries, which has gone silent; control calls
        go on."""
        self._upstream.break_all(UpstreamBroken("The node has gone silent."))

    def cut_all(self) -> None:
        """Ends the inference requests that the node carries, which is no failure of its own."""
        self._upstream.break_all(CutOff("The node is being drained."))

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    keepalive_timeout=IDLE_S,
                    resolver=Resolver(self._upstream.host),
                    use_dns_cache=False,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session

    # --- inference ---

    def open(self, ticket: Ticket, lease: Lease, stamp: Stamp) -> Awaitable[Response]:
        """Sends an inference request; returns at the response's head, its body unread.

        Of the caller's headers its trace alone goes to a node, so that its key never leaves the
        router. A foreign server is not told whose request it is. Raises `OSError` where the
        connection fails.
        """
        start = self._relay_starts.get(ticket.path)
        if start is None:
            start = self._relay_starts[ticket.path] = self._start("POST", ticket.path)
        own, request_id = "", lease.node_request_id
        if not self._is_agent:
            request_id = request_id.removeprefix(f"{ticket.caller.owner}-")
        else:
            # A foreign node's model name may hold anything, line breaks too.
            asked = ticket.requested_model if ticket.requested_model.isprintable() else ""
            own = (
                f"{HEADER_ORIGIN}: {stamp.origin}\r\n{HEADER_PROOF}: {stamp.proof}\r\n"
                f"{HEADER_REQUESTED_MODEL}: {asked}\r\n"
            )
            if ticket.caller.salt:
                own += f"{HEADER_SALT}: {ticket.caller.salt}\r\n"
        rest = (
            f"{HEADER_REQUEST_ID}: {request_id}\r\n{own}{ticket.trace}"
            f"content-length: {len(ticket.body)}\r\n\r\n"
        )
        return self._upstream.send(start + rest.encode(), ticket.body)

    async def follow_up(self, method: str, target: str, origin: str) -> WholeAnswer:
        """Asks an agent for something that it holds; `target` is a path with its query.

        Raises `OSError` where the connection fails, where the answer takes longer than
        `CONTROL_TIMEOUT_S`, and where it is longer than `MAX_ANSWER_BYTES`.
        """
        head = self._start(method, target)
        head += f"{HEADER_ORIGIN}: {origin}\r\ncontent-length: 0\r\n\r\n".encode()
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            response = await self._upstream.send(head, b"")
            try:
                body = await response.read_all(MAX_ANSWER_BYTES)
            finally:
                response.close()
        return WholeAnswer(response.status, response.headers, body)

    def _start(self, method: str, target: str) -> bytes:
        """What every such request begins with."""
        parts = urlsplit(self.url)
        fixed = {
            "host": parts.netloc,
            "content-type": "application/json",
            "accept-encoding": "identity",
            **self._credential.headers(),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        return f"{method} {parts.path}{target} HTTP/1.1\r\n{lines}".encode()

    # --- control ---

    async def status(self) -> NodeStatus:
        """The agent's status. Raises `NodeUnreachable`, `WrongNodeToken`, `WrongNodeProtocol`,
        `NodeRefused`."""
        return self._status(await self._control("GET", PATH_STATUS))

    async def load(self, model: str) -> None:
        """Makes a model resident; returns when it is. Raises what `status` raises."""
        await self._control("POST", PATH_LOAD, ModelCommand(model), timeout_s=3600)

    async def unload(
        self, model: str, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Unloads an idle model; with `generation` only this load of it, with `min_idle_s` only
        where it has been idle for so long. Raises what `status` raises."""
        command = UnloadCommand(model, generation, min_idle_s)
        await self._control("POST", PATH_UNLOAD, command, timeout_s=60)

    async def set_policies(self, policies: Policies) -> None:
        """Tells the agent what this router asks of its models' residency. Raises what `status`
        raises."""
        await self._control("POST", PATH_POLICIES, policies)

    async def pull(self, command: PullCommand) -> NodeStatus:
        """Begins a pull, or goes on with it; the status in which it has begun. Raises what
        `status` raises."""
        return self._status(await self._control("POST", PATH_PULL, command))

    async def pull_cancel(self, model: str) -> None:
        """Ends a pull and deletes what has come. Raises what `status` raises."""
        await self._control("POST", PATH_PULL_CANCEL, ModelCommand(model), timeout_s=60)

    async def remove(self, model: str) -> None:
        """Deletes a model from the node's disk. Raises what `status` raises."""
        await self._control("POST", PATH_REMOVE, ModelCommand(model), timeout_s=600)

    async def share(self, model: str) -> Share:
        """What a peer needs to copy the model; hashes its files at the first call. Raises what
        `status` raises."""
        body = await self._control("POST", PATH_SHARE, ModelCommand(model), timeout_s=3600)
        try:
            return msgspec.json.decode(body, type=Share)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._not_an_agent(error) from error

    async def foreign_models(self) -> list[str]:
        """Model ids of an OpenAI-compatible server, of its first `MAX_FOREIGN_MODELS` entries; what
        is no name is passed over. Raises what `status` raises."""
        body = await self._control("GET", "/v1/models")
        if body.count(b",") > _LIST_COMMAS:
            raise NodeRefused(f"{self.url}/v1/models lists more than {_LIST_COMMAS:,} values.")
        try:
            listed = msgspec.json.decode(body, type=ForeignModels).data or []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NodeRefused(f"{self.url}/v1/models does not list models.") from error
        names = [_name(entry) for entry in listed[:MAX_FOREIGN_MODELS]]
        return list(dict.fromkeys(name for name in names if name is not None))

    async def events(self, instance_id: str, after: int) -> AsyncGenerator[Event, None]:
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
                read_bufsize=MAX_EVENT_BYTES // 2,  # a line may have twice that
            ) as response:
                await self._check(response)
                async for line in response.content:
                    event = self._events.read(line)
                    if event is not None:
                        yield event
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, HttpProcessingError) as error:
            raise NodeRefused(f"{self.url} sent an event that is not one{_why(error)}.") from error

    async def _control(
        self,
        method: str,
        path: str,
        command: msgspec.Struct | None = None,
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
                return await self._read(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status in (200, 202):
            return
        body = await self._read(response)
        if response.status in (401, 403):
            raise WrongNodeToken(None if self._credential.token else NO_TOKEN)
        sentence = _sentence(body)
        if response.status == 426:
            raise WrongNodeProtocol(sentence)
        hint = (
            "is it a node agent? Another server is added with --kind openai."
            if self._is_agent
            else "is it an OpenAI-compatible server?"
        )
        answered = f"{self.url} answered {response.status} to {response.url.path}; {hint}"
        raise NodeRefused(sentence or answered)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body of a control call's answer."""
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _CONTROL_BYTES:
                response.close()
                raise NodeRefused(f"{self.url} answers with more than {_CONTROL_BYTES >> 20} MiB.")
        return bytes(body)

    def _status(self, body: bytes) -> NodeStatus:
        try:
            return decode_status(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._not_an_agent(error) from error

    def _not_an_agent(self, error: Exception) -> NodeRefused:
        return NodeRefused(f"{self.url} does not answer like a node agent{_why(error)}.")

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        cause = cause_of(error, self.addresses)
        sentence = sentence_of(cause, error)
        return NodeUnreachable(f"{self.url} cannot be reached: {sentence}", cause=cause)


def _why(error: Exception) -> str:
    """What of a message breaks the protocol, as the end of a sentence; empty where all does."""
    return f": {error}" if isinstance(error, msgspec.ValidationError) else ""


def _name(entry: msgspec.Raw) -> str | None:
    """The name in an entry of a list of models, if it has one."""
    try:
        written = msgspec.json.decode(entry, type=_ForeignModel).id
        if len(memoryview(written)) > _NAME_BYTES:
            return None
        name = msgspec.json.decode(written, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return name if is_name(name) else None


def _sentence(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=ControlError).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
