"""A whole node agent with the scripted engine on a real socket, in the test's own event loop."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from node.app import NodeApp, build_app, load_token
from node.commands.serve import server_config
from node.engine.scripted.script import Script
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PROTOCOL_VERSION, Event, NodeStatus, decode_event, decode_status
from node.settings import Settings
from serving.http.door import Entry
from serving.http.quiet_server import QuietServer, Stop
from serving.http.timeouts import DEFAULT_TIMEOUTS, ClientTimeouts
from tests.fakes import NO_TLS

WAIT_S = 30.0

_E = TypeVar("_E")


class _Server(QuietServer):
    """Tells when it accepts connections."""

    def __init__(self, app: NodeApp) -> None:
        self.stop = Stop()
        entry = Entry(app.certificate.context, app.callers)
        super().__init__(server_config(app), self.stop, entry)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class Events:
    """The events of the agent's stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.seen: list[Event] = []

    async def next(self, kind: type[_E], accept: Callable[[_E], bool] = lambda event: True) -> _E:
        """The next event of that kind that is acceptable."""
        async with asyncio.timeout(WAIT_S):
            async for line in self._lines:
                event = decode_event(line)
                self.seen.append(event)
                if isinstance(event, kind) and accept(event):
                    return event
        raise AssertionError("The event stream ended.")


class RunningAgent:
    """One agent, and clients to it."""

    def __init__(self, app: NodeApp, token: str, port: int) -> None:
        self.app = app
        self.token = token
        self.port = port
        self.headers = {"authorization": f"Bearer {token}", HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=self.headers, timeout=WAIT_S, verify=NO_TLS
        )

    async def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat_body(content, **fields))

    @property
    def tls_url(self) -> str:
        """The address at which routers are paired with it."""
        return f"https://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def events(self, instance: str = "", after: int = 0) -> AsyncIterator[Events]:
        query: dict[str, str | int] = {"instance": instance, "after": after}
        async with self.client.stream("GET", "/fleet/events", params=query) as response:
            assert response.status_code == 200
            yield Events(response.aiter_lines())

    async def status(self) -> NodeStatus:
        return decode_status((await self.client.get("/fleet/status")).content)

    async def until_active(self, count: int = 1) -> None:
        """Waits until the engine has so many requests."""
        async with asyncio.timeout(WAIT_S):
            while (await self.status()).models[0].active_requests != count:
                pass

    async def send_raw(
        self, body: bytes, *, path: str = "/v1/chat/completions", head: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request over a bare connection; `head` replaces the content-length line."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        length = head or f"content-length: {len(body)}"
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.token}\r\n"
            f"{length}\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def running(
    home: Path,
    script: Script | None = None,
    *,
    stream_keepalive_s: float = 5.0,
    timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
    **fields: Any,
) -> AsyncIterator[RunningAgent]:
    """An agent whose engines follow `script`, unless `fields`, which are further settings, name
    another kind."""
    home.mkdir(exist_ok=True)
    file = home / "script.json"
    file.write_bytes(msgspec.json.encode(script or Script()))
    settings = Settings(home=home, **{"engine": "scripted", "script": file, **fields})
    token, _ = load_token(settings)
    app = build_app(settings, stream_keepalive_s=stream_keepalive_s, timeouts=timeouts)
    listener = socket.create_server(("127.0.0.1", 0))
    # Passed on to its connections. The product's loop sets it by itself; without it each answer
    # on a connection that stays waits some 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = _Server(app)
    task = asyncio.create_task(server.serve([listener]))
    agent = RunningAgent(app, token, listener.getsockname()[1])
    try:
        async with asyncio.timeout(WAIT_S):
            await server.listening.wait()
        yield agent
    finally:
        app.agent.end_events()
        await agent.client.aclose()
        server.stop.set()
        async with asyncio.timeout(WAIT_S):
            await task


def chat_body(content: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}


def data_of(text: str) -> list[Any]:
    """The JSON of each `data:` line; `[DONE]` as it is."""
    payloads = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in payloads]


async def closed(writer: asyncio.StreamWriter) -> None:
    """Closes the connection as a client that leaves."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
