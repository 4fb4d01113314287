"""Real sockets for the router: its ASGI app in uvicorn, scripted nodes, and a raw caller."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import uvicorn
from uvicorn.server import ServerState

from node.protocol.ids import owner_mark
from node.protocol.lifecycle import PATH_POLICIES
from node.protocol.messages import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    Event,
    Finished,
    FinishReason,
    ModelState,
    ModelStatus,
    NodeStatus,
    StatusEvent,
    encode_event,
)
from registry import nodes
from registry.records import AliasRecord, AliasTarget, KeyRecord, NodeRecord
from router.app import build_app, open_core
from router.auth import new_key
from router.client.error_dialects import refusal_body
from router.core import Core
from router.settings import Settings
from router.types import Caller, Lease, NodeView, Ticket
from router.upstream import control_client
from router.upstream.credentials import NodeCredential
from router.upstream.origins import Origins
from serving.http.callers import Callers
from serving.http.client_connection import ClientConnection
from serving.http.timeouts import DEFAULT_TIMEOUTS, ClientTimeouts
from tests.router.leases import open_leases

WAIT_S = 20.0
"""Longest wait for anything that must happen."""
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def _patient_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is lost because the machine is busy; tests of silent nodes set a time of their
    own."""
    monkeypatch.setattr(control_client, "HEARTBEAT_S", WAIT_S)


def model_status(name: str = "m", **fields: Any) -> ModelStatus:
    status = ModelStatus(name, ModelState.READY, weight_bytes=0, max_rows=8)
    return msgspec.structs.replace(status, **fields)


def node_status(
    *models: ModelStatus,
    node_id: str = "id-a",
    instance_id: str = "i1",
    protocol: int = PROTOCOL_VERSION,
) -> NodeStatus:
    return NodeStatus(
        protocol=protocol,
        node_id=node_id,
        instance_id=instance_id,
        version="0",
        engine="scripted",
        chip="M0",
        memory_budget_bytes=1 << 40,
        memory_leased_bytes=0,
        models=models or (model_status(),),
    )


ACCEPTED = ("a", "b", "m", "large", "llama")
"""The models that servers of kind openai may serve in most tests."""


def node_record(
    url: str,
    name: str = "a",
    kind: str = "agent",
    token: str = "secret",
    *,
    node_id: str = "",
    accepted: tuple[str, ...] = ACCEPTED,
) -> NodeRecord:
    credential = NodeCredential(token).text()
    return NodeRecord(
        node_id or "id-" + name,
        name,
        url,
        kind,
        credential,
        created_at_s=1.0,
        accepted=accepted if kind == "openai" else None,
    )


def node_view(node_id: str = "n", *models: ModelStatus, reachable: bool = True) -> NodeView:
    status = node_status(*models, node_id=node_id)
    return NodeView(node_id, node_id, "agent", "http://x", status, reachable, None, status_at_s=1.0)


def ticket(request_id: str = "r", model: str = "m", **fields: Any) -> Ticket:
    caller = Caller("key-1", "ann", frozenset(("inference", "external")), owner_mark("key-1"))
    made = Ticket(request_id, caller, CHAT, model, model, stream=True, arrived_s=0.0, body=b"{}")
    return msgspec.structs.replace(made, **fields)


ORIGINS = Origins("router-1", b"secret")


def proven(finished: Finished, node_id: str = "n", origins: Origins = ORIGINS) -> Finished:
    """The usage of a request that the node was given by the router of `origins`."""
    marks = origins.marks(
        ticket(finished.request_id, finished.model), lease(finished.request_id, node_id)
    )
    return msgspec.structs.replace(finished, origin=marks.origin, proof=marks.proof)


def alias(
    name: str, *models: str | AliasTarget, selector: str = "first", **fields: Any
) -> AliasRecord:
    """Returns the record of an alias of models, or of `AliasTarget`s."""
    targets = tuple(AliasTarget(each) if isinstance(each, str) else each for each in models)
    return AliasRecord(name, targets, 1.0, selector, **fields)


def lease(ticket_id: str = "r", node_id: str = "n", attempt: int = 1) -> Lease:
    return Lease(ticket_id, node_id, "m", granted_s=0.0, attempt=attempt)


# --- a scripted node ---


@dataclass
class Request:
    """One request as it reached a node, and the way to answer it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event
    """Set when the other side has closed the connection."""
    stay_open: bool = True

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        await self.write(answer_bytes(body, status, **headers))

    async def begin_stream(self) -> None:
        await self.write(STREAM_HEAD)

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Ends the connection at once, as a node that dies does."""
        self.stay_open = False
        self.writer.transport.abort()

    async def wait_gone(self) -> None:
        await asyncio.wait_for(self.gone.wait(), WAIT_S)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def answer_bytes(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


Script = Callable[[Request], Awaitable[None]]


@dataclass
class ScriptedNode:
    """A node that sends exactly what its script says, byte by byte."""

    script: Script
    first_events: tuple[Event, ...] = (StatusEvent(node_status()),)
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    policies: list[dict[str, Any]] = field(default_factory=list)
    """The policies pushed to it for its models' residency; its script has no influence on that."""
    connections: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader)
        counted = False
        try:
            while (request := await wire.request(writer)) is not None:
                if request.target == PATH_POLICIES:
                    self.policies.append(json.loads(request.body))
                    await request.answer(b"{}")
                else:
                    self.connections += not counted
                    counted = True
                    self.requests.append(request)
                    await self._serve(request)
                if not request.stay_open:
                    break
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            wire.end()
            writer.transport.abort()
            self._tasks.discard(task)

    async def tell(self, event: Event) -> None:
        """Sends an event on every event stream that is open."""
        for request in self.requests:
            if request.target.startswith("/fleet/events") and not request.gone.is_set():
                await request.chunk(encode_event(event) + b"\n")

    async def _serve(self, request: Request) -> None:
        if not request.target.startswith("/fleet/events"):
            await self.script(request)
            return
        await request.begin_stream()
        for event in self.first_events:
            await request.chunk(encode_event(event) + b"\n")
        while not request.gone.is_set():
            try:
                await asyncio.wait_for(request.gone.wait(), HEARTBEAT_S)
            except TimeoutError:
                for event in self.first_events[:1]:
                    await request.chunk(encode_event(event) + b"\n")


class Wire:
    """Reads requests from a connection and notices its end while one is being answered."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data = bytearray()
        self._more = asyncio.Event()
        self.gone = asyncio.Event()
        self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                self._data += data
                self._more.set()
        except OSError:
            pass
        self.gone.set()
        self._more.set()

    def end(self) -> None:
        self._pump.cancel()

    async def _until(self, ready: Callable[[], bool]) -> bool:
        while not ready():
            if self.gone.is_set():
                return False
            self._more.clear()
            await self._more.wait()
        return True

    async def request(self, writer: asyncio.StreamWriter) -> Request | None:
        if not await self._until(lambda: b"\r\n\r\n" in self._data):
            return None
        end = self._data.index(b"\r\n\r\n")
        head = bytes(self._data[:end])
        del self._data[: end + 4]
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _version = first.split(" ")
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        await self._until(lambda: len(self._data) >= size)
        body = bytes(self._data[:size])
        del self._data[:size]
        return Request(method, target, headers, body, writer, self.gone)


# --- the router under test ---


@dataclass
class RunningRouter:
    core: Core
    port: int
    key: str
    state: ServerState
    callers: list[RawCaller] = field(default_factory=list)

    async def add(
        self,
        node: ScriptedNode,
        name: str = "a",
        kind: str = "agent",
        *,
        node_id: str = "",
        accepted: tuple[str, ...] = ACCEPTED,
        wakes: bool = False,
    ) -> None:
        record = node_record(node.url, name, kind, node_id=node_id, accepted=accepted)
        record = replace(record, wakes=wakes)
        await self.core.registry.write(lambda session: nodes.add(session, record))
        await asyncio.wait_for(self.core.watcher.watch(record), WAIT_S)
        self.core.waker.follow(record)

    async def post(self, body: object, path: str = CHAT, **headers: str) -> RawCaller:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {
            "authorization": f"Bearer {self.key}",
            "content_length": str(len(data)),
        } | headers
        return await self.send("POST", path, data, **headers)

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> RawCaller:
        caller = await RawCaller.connect(self.port)
        self.callers.append(caller)
        lines = {"host": "router", **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        caller.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return caller

    def caller(self, key: str = "") -> Caller:
        """The holder of a key; of the router's first one where none is given."""
        return self.core.keys.check(key or self.key, "inference", "admin")

    def new_key(self, *scopes: str, expires_at_s: float | None = None) -> str:
        """Another caller's key."""
        key, prefix, digest = new_key()
        name = secrets.token_hex(4)
        self.core.keys.add(KeyRecord(name, name, prefix, digest, scopes, 0.0, expires_at_s, None))
        return key

    async def idle(self) -> None:
        """Waits until no request is being served."""
        async with asyncio.timeout(WAIT_S):
            while self.state.tasks:
                await asyncio.wait(self.state.tasks)


@dataclass
class RawCaller:
    """A client of the router that sees every byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def connect(cls, port: int) -> RawCaller:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def head(self) -> int:
        """The status; the headers are kept."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
        pairs = [
            (name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)
        ]
        self.headers = dict(pairs)
        assert len(self.headers) == len(pairs), "a header was sent twice"
        self.status = int(first.split(" ")[1])
        return self.status

    async def chunk(self) -> bytes:
        """The next chunk of a chunked answer; empty at its end."""
        size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), WAIT_S), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), WAIT_S)
        return data[:-2]

    async def body(self) -> bytes:
        if not self.status:
            await self.head()
        if "content-length" in self.headers:
            size = int(self.headers["content-length"])
            return await asyncio.wait_for(self.reader.readexactly(size), WAIT_S)
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def error(self) -> dict[str, Any]:
        """The error of an answer that is one."""
        error = json.loads(await self.body())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error, dict)
        return error

    def leave(self) -> None:
        self.writer.close()


class _Errors(logging.Handler):
    """Keeps what uvicorn would only have logged: an app that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


@asynccontextmanager
async def serving(
    app: Any, timeouts: ClientTimeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[tuple[int, ServerState]]:
    """The app in uvicorn's own protocol on a free port; fails the test where the app raises."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    callers = Callers(refusal_body, timeouts=timeouts)
    config.load()
    state = ServerState()
    errors = _Errors()
    logging.getLogger("uvicorn.error").addHandler(errors)
    server = await asyncio.get_running_loop().create_server(
        lambda: ClientConnection(config, state, {}, callers=callers), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=WAIT_S)
        logging.getLogger("uvicorn.error").removeHandler(errors)
    assert not errors.seen, errors.seen[0]


@asynccontextmanager
async def running_router(
    folder: Path, timeouts: ClientTimeouts = DEFAULT_TIMEOUTS, **fields: Any
) -> AsyncIterator[RunningRouter]:
    settings = Settings(home=folder / "router", **fields)
    async with open_core(settings) as core:
        key = settings.first_key_file.read_text().strip()
        async with serving(build_app(core), timeouts) as (port, state):
            running = RunningRouter(core, port, key, state)
            yield running
            for caller in running.callers:
                caller.leave()
        assert open_leases(core.traffic) == 0, "a lease was never given back"


@pytest_asyncio.fixture
async def router(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    async with running_router(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router that withholds a stream's head for a twentieth of a second only."""
    async with running_router(tmp_path, stream_keepalive_s=0.05) as running:
        yield running


StartNode = Callable[..., Awaitable[ScriptedNode]]


@pytest_asyncio.fixture
async def start_node() -> AsyncIterator[StartNode]:
    """Starts scripted nodes that end with the test."""
    started: list[ScriptedNode] = []

    async def start(script: Script, **fields: Any) -> ScriptedNode:
        node = ScriptedNode(script, **fields)
        started.append(node)
        await node.start()
        return node

    yield start
    for node in started:
        await node.stop()


AddNode = Callable[[RunningRouter, str, Script], Awaitable[ScriptedNode]]


@pytest.fixture
def add_node(start_node: StartNode) -> AddNode:
    """Starts scripted nodes with the model `m` and adds them to a router."""

    async def add(router: RunningRouter, name: str, script: Script) -> ScriptedNode:
        first = (StatusEvent(node_status(model_status("m"), node_id="id-" + name)),)
        node = await start_node(script, first_events=first)
        await router.add(node, name)
        return node

    return add


def agent_id(name: str) -> str:
    """The id of the node of that name, as node agents make them: 16 hex digits."""
    return name.encode().hex().rjust(16, "0")


@pytest.fixture
def add_agent(start_node: StartNode) -> AddNode:
    """Adds nodes like `add_node`, but their ids may stand in the ids of answers."""

    async def add(router: RunningRouter, name: str, script: Script) -> ScriptedNode:
        status = node_status(model_status("m"), node_id=agent_id(name))
        node = await start_node(script, first_events=(StatusEvent(status),))
        await router.add(node, name, node_id=agent_id(name))
        return node

    return add


async def silent(_request: Request) -> None:
    """The script of a node that is never sent a request."""
    raise AssertionError("the node got a request")


FINISHED = proven(
    Finished(
        seq=7,
        request_id="r",
        origin="",
        model="m",
        prompt_tokens=20,
        cached_tokens=4,
        completion_tokens=11,
        reasoning_tokens=2,
        queue_s=0.1,
        ttft_s=0.25,
        prefill_s=0.2,
        decode_s=2.0,
        reason=FinishReason.STOP,
        finished_unix_s=99.0,
    )
)
"""The usage record of a request `r` on the node `n`."""
