"""A client's connection: HTTP/1.1 on httptools, one request at a time, run by uvicorn's server.

It is faster than uvicorn's own (docs/decisions/0020): a response's head is sent with the first
bytes of its body, one timer serves all requests of a connection, and a relay writes without a task
of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from serving.http.callers import Callers
from serving.http.door import ArrivedConnection
from serving.http.exchange import AUTHENTICATED, EXTENSION, Exchange, Message
from serving.http.refusals import (
    HeadTooLong,
    NotARequest,
    Refusal,
    RequestTimeout,
    TooManyConnections,
)
from serving.http.request_head import check_head, read_target, refusal_of
from serving.http.tcp_keepalive import probe
from serving.http.timeouts import PROBES, ClientProgress, unsent_bytes

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
KEEP_ALIVE_S = 75
"""Seconds that a connection may be open without a request, in every server here. A router closes
its connections to nodes after less."""
_LINE_BYTES = 4
"""Bytes of a header line besides name and value."""
_ASGI = {"version": "3.0", "spec_version": "2.3"}

log = logging.getLogger("mlx_fleet.serving")
TOO_MANY_S = 0.5
"""Longest wait for the first bytes of a connection that is one too many."""


class ClientConnection(ArrivedConnection):
    """The protocol that uvicorn's server uses for each connection (see `protocol_of`)."""

    _is_too_many = False
    """True if the connection is to be refused."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        callers: Callers,
    ) -> None:
        if not config.loaded:
            config.load()
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]
        self.write_paused = False
        self._callers = callers
        self._app = config.loaded_app
        self._app_state = app_state
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._progress = ClientProgress(
            callers.timeouts, float(config.timeout_keep_alive), self._loop.time()
        )
        self._parser: Any = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        """The exchange that is in progress."""
        self._authenticated = False
        """True once a request of the connection has shown a valid key."""
        self._ignores_input = False
        """True if all further input is ignored."""
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fixed: dict[str, Any] = {}
        """Fields that are the same in every scope."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._head_bytes = 0
        """Bytes of a head that is not complete."""
        self._field_bytes = 0
        """Bytes of address, header lines and trailers."""

    # --- for the server ---

    def shutdown(self) -> None:
        """Closes the connection, after a response in progress is complete."""
        if self._exchange is None:
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # --- for the callers ---

    def abort(self) -> None:
        self.transport.abort()

    def _on_authenticated(self) -> None:
        self._authenticated = True
        self._callers.forget(self)

    # --- for the exchange ---

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    async def drained(self) -> None:
        """Waits until the client has read most of the response, or has disconnected."""
        while self.write_paused:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def on_response_complete(self, exchange: Exchange) -> None:
        self._state.total_requests += 1
        self._exchange = None
        self._progress.idle_since_s = self._loop.time()
        if not exchange.keep_alive or self._ignores_input:
            self.transport.close()
        elif not exchange.body_complete:
            self.resume_reading()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.before_made is not None:
            self.before_made()
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._fixed = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
            "root_path": "",
        }
        connected: socket.socket = transport.get_extra_info("socket")
        probe(connected, PROBES)
        self._timer = self._loop.call_later(self._progress.check_each_s, self._on_timer)
        address, here = self._fixed["client"], len(self._state.connections)
        if not self._callers.admit(self, address[0] if address else "", here, connected.fileno()):
            self._is_too_many = True
            self._loop.call_later(TOO_MANY_S, self._refuse_arrival)

    def _refuse_arrival(self) -> None:
        """Refuses the connection as one too many, once something of its request has been read:
        unread, it would turn the end of the connection into a reset, and the response be lost."""
        if not self.transport.is_closing():
            self._is_too_many = False
            self._on_broken(TooManyConnections())

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._callers.forget(self)
        self._ignores_input = True
        self._parser = None  # it refers to this object
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_lost()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._progress.accepted_s = self._loop.time()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._progress.accepted_s = self._loop.time()
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        if self._is_too_many:
            self._refuse_arrival()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignores_input = True
            if self._exchange is not None:  # the upgrade is ignored
                self._exchange.keep_alive = False
        except httptools.HttpParserError as error:
            self._on_broken(refusal_of(error))
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._on_broken(HeadTooLong())

    def _on_broken(self, refusal: Refusal) -> None:
        """Refuses invalid input, and a request that comes before the response to the previous one
        is complete; in that case this response is finished first. Then closes the connection."""
        exchange = self._exchange
        if exchange is not None and exchange.body_complete:
            self._ignores_input = True
            exchange.keep_alive = False
            return
        if exchange is not None:
            exchange.on_lost()
        if not self._ignores_input and (exchange is None or not exchange.began):
            self._refuse(Exchange(self, b"", "1.0"), refusal, self._url)
        self._ignores_input = True
        self.transport.close()

    def _on_timer(self) -> None:
        progress, now_s = self._progress, self._loop.time()
        self._timer = self._loop.call_later(progress.check_each_s, self._on_timer)
        waiting_bytes = self.transport.get_write_buffer_size()
        is_full = self.write_paused or (waiting_bytes > 0 and self.transport.is_closing())
        exchange = self._exchange
        if is_full:
            waiting_bytes += unsent_bytes(self.transport.get_extra_info("socket"))
        if progress.is_stalled(now_s, waiting_bytes, is_full=is_full):
            log.warning(
                "A client that accepted nothing of its response for too long is disconnected."
            )
            self.transport.abort()
        elif self._in_head:
            if progress.head_is_late(now_s):
                self._on_broken(RequestTimeout("The head of the request took too long."))
        elif exchange is None:
            if progress.is_idle(now_s):
                self.transport.close()
        elif not exchange.body_complete and progress.body_is_late(now_s):
            self._on_broken(RequestTimeout("The body of the request took too long."))

    # --- httptools ---

    def on_message_begin(self) -> None:
        if self._exchange is not None:
            raise NotARequest("A request arrived before the response to the previous one.")
        self._url = b""
        self._headers = []
        self._in_head = True
        self._progress.begin(self._loop.time())
        self._head_bytes = self._field_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _LINE_BYTES)
        # Trailers are no headers: they would bypass checks of the headers.
        if self._in_head:
            self._headers.append((name.lower(), value))

    def _count(self, nbytes: int) -> None:
        self._field_bytes += nbytes
        if self._field_bytes > MAX_HEAD_BYTES:
            raise HeadTooLong

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        if len(self._headers) > MAX_HEADERS:
            raise HeadTooLong(f"The request has more than {MAX_HEADERS} headers.")
        waits = check_head(version, self._headers)
        raw_path, query = read_target(method, self._url)
        exchange = self._exchange = Exchange(self, method, version)
        exchange.expects_continue = waits
        if not parser.should_keep_alive():
            exchange.keep_alive = False
        path = raw_path.decode("ascii")
        extensions: dict[str, Any] = {EXTENSION: exchange}
        if not self._authenticated:
            extensions[AUTHENTICATED] = self._on_authenticated
        scope = {
            **self._fixed,
            "http_version": version,
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
            "extensions": extensions,
        }
        task = self._loop.create_task(self._respond(scope, exchange))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def on_body(self, piece: bytes) -> None:
        self._progress.body_bytes += len(piece)
        if self._exchange is not None:
            self._exchange.on_body(piece)

    def on_message_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.on_body_complete()

    def _refuse(self, exchange: Exchange, refusal: Refusal, url: bytes) -> None:
        path = url.partition(b"?")[0].decode("latin-1")
        body = self._callers.spell(refusal, path)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        exchange.begin(refusal.status, headers + refusal.headers())
        exchange.end(body)

    async def _respond(self, scope: Message, exchange: Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("The response to %r failed.", scope["path"])
        if exchange.complete or exchange.disconnected:
            return
        if exchange.began:
            self.transport.close()  # shows that the response is incomplete
        else:
            exchange.keep_alive = False
            self._refuse(exchange, Refusal(), scope["raw_path"])


def protocol_of(callers: Callers) -> type[asyncio.Protocol]:
    """The value of `uvicorn.Config(http=…)`."""
    return cast(type[asyncio.Protocol], functools.partial(ClientConnection, callers=callers))


def _address(found: Any) -> tuple[str, int] | None:
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
