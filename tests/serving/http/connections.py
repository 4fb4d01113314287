"""A server of ours on a real socket, over TCP or TLS, and clients that send it bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from uvicorn.server import ServerState

from serving.http.callers import Callers, Limits
from serving.http.client_connection import ClientConnection
from serving.http.door import Door, Entry
from serving.http.exchange import Message, Receive, Send
from serving.http.refusals import Refusal
from serving.http.timeouts import DEFAULT_TIMEOUTS, ClientTimeouts
from serving.tls.own_certificate import OwnCertificate
from serving.tls.pinning import pinned_context

App = Callable[[Message, Receive, Send], Awaitable[None]]
GET = b"GET /x HTTP/1.1\r\nhost: here\r\n\r\n"
WAIT_S = 20.0


@dataclass
class Caller:
    """A client that sends bytes and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()


@dataclass
class Server:
    port: int
    state: ServerState
    rules: Callers
    callers: list[Caller] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    async def call(self) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls))
        self.callers.append(caller)
        return caller


def spell(refusal: Refusal, path: str) -> bytes:
    fields = {"code": refusal.code, "message": refusal.message, "path": path}
    return json.dumps(fields).encode()


@dataclass
class Over:
    """The way to the servers of the running test."""

    certificate: OwnCertificate | None = None
    """None for servers without TLS."""


OVER = Over()


@asynccontextmanager
async def listening(
    make: Callable[[], ClientConnection], callers: Callers
) -> AsyncIterator[tuple[int, ssl.SSLContext | None]]:
    """Yields the port, and the context of its clients."""
    certificate = OVER.certificate
    if certificate is None:
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1], None
        server.close()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(Entry(certificate.context, callers), make)
        door.open([listener])
        pin = pinned_context(ssl.DER_cert_to_PEM_cert(certificate.der))
        yield listener.getsockname()[1], pin
        door.close()
        await door.wait_closed()


@asynccontextmanager
async def serving(
    app: App,
    keep_alive_s: float = 75,
    timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
    limits: Limits | None = None,
) -> AsyncIterator[Server]:
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.timeout_keep_alive = keep_alive_s  # type: ignore[assignment]
    state = ServerState()
    callers = Callers(spell, limits, timeouts)
    async with listening(lambda: ClientConnection(config, state, {}, callers=callers), callers) as (
        port,
        tls,
    ):
        serving = Server(port, state, callers, tls=tls)
        try:
            yield serving
        finally:
            for caller in serving.callers:
                caller.writer.close()
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=WAIT_S)


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Answers with the request's path, its query and its body."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    echoed = scope["path"].encode() + b"?" + scope["query_string"] + b" " + body
    length = (b"content-length", b"%d" % len(echoed))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": echoed})
