"""An HTTP/1.1 client for inference requests to one node, with pooled connections and bodies that
are read as they arrive.

Written for speed (docs/decisions/0008): it sends a request with one write, creates no task, and
passes on at once what one read returns.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from router.settings import CONNECT_TIMEOUT_S
from router.upstream.host_name import HostName
from router.upstream.http_failures import NoResponse, NotConnected, UpstreamBroken
from router.upstream.http_response import Response as Response
from serving.http.tcp_keepalive import Probes, probe

IDLE_S = 30.0
"""Seconds until an idle connection is closed; shorter than a node agent's own timeout, so that the
router is the side that closes it."""
STALE_S = 1.0
"""A pooled connection that breaks within so many seconds without a response had been closed while
idle; the request is sent again."""
_PROBES = Probes(idle_s=15, each_s=5, count=3, unread_s=30)
"""The kernel detects within half a minute that a node has lost its power or does not read a
request."""
ONE_WRITE_BYTES = 64 * 1024
"""Larger bodies are not copied to be sent in one write with the head."""


class _Connection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self.closed = False
        self.idle_since_s = 0.0
        self._upstream = upstream
        self._transport: asyncio.Transport
        self._response: Response | None = None

    def ask(self, head: bytes, body: bytes) -> Response:
        """Sends a request; returns its response, of which nothing has arrived yet."""
        response = self._response = Response(self)
        if self.closed:
            response.on_lost(None)
        elif len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def fail(self, failure: UpstreamBroken) -> None:
        """Aborts, and fails the response in progress, even one that ends with its connection."""
        if self._response is not None:
            self._response.fail(failure)
        self.abort()

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.closed:
            self._transport.resume_reading()

    def on_complete(self, *, keep: bool) -> None:
        self._response = None
        if keep and not self.closed:
            self.resume_reading()
            self._upstream.on_idle(self)
        else:
            self.closed = True
            self._transport.close()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        probe(raw, _PROBES)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was requested
            return
        try:
            response.feed(data)
        except httptools.HttpParserError as error:
            response.fail(UpstreamBroken(f"The node's response is not HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._upstream.on_lost(self)
        response, self._response = self._response, None
        if response is not None:
            response.on_lost(exc)


class Upstream:
    """Connections to one node; the one used last is reused first."""

    def __init__(self, url: str, pin: ssl.SSLContext | None = None) -> None:
        """`pin`: the context for a node whose certificate is pinned; any other https server is
        known by its name."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.host = HostName(parts.hostname or "", port)
        self._tls = pin
        if pin is None and parts.scheme == "https":
            self._tls = ssl.create_default_context()
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def send(self, head: bytes, body: bytes) -> Response:
        """Sends a request; returns once the head of its response has arrived.

        Raises `OSError` if no connection can be made; `NotConnected`, a subclass, if that takes too
        long; and `UpstreamBroken` if the connection breaks.
        """
        connection = self._take()
        if connection is not None:
            sent_s = time.monotonic()
            response = connection.ask(head, body)
            try:
                await response.head()
                return response
            except NoResponse:
                if time.monotonic() - sent_s > STALE_S:
                    raise
        response = (await self._connect()).ask(head, body)
        await response.head()
        return response

    def close(self) -> None:
        """Aborts all connections."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    def renew(self) -> None:
        """Closes idle connections, and makes the next one look up the host name again."""
        while self._idle:
            self._idle.pop().abort()
        self.host.expire()

    def break_all(self, failure: UpstreamBroken) -> None:
        """Fails all exchanges with this error; new ones may be started."""
        for connection in list(self._all):
            connection.fail(failure)
        self._idle.clear()

    def on_idle(self, connection: _Connection) -> None:
        now_s = connection.idle_since_s = time.monotonic()
        self._idle.append(connection)
        while now_s - self._idle[0].idle_since_s > IDLE_S:
            self._idle.pop(0).abort()

    def on_lost(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            if time.monotonic() - connection.idle_since_s <= IDLE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self.host.connect(lambda: _Connection(self), self._tls)
        except TimeoutError as error:
            raise NotConnected(f"No connection within {CONNECT_TIMEOUT_S:g} s.") from error
        self._all.add(connection)
        return connection
