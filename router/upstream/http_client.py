"""An HTTP/1.1 client for inference requests to one node: pooled connections, bodies as they come.

Our own by measurement (docs/decisions/0008): it sends a request with one write, makes no task, and
hands over at once what one read brought.
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
from router.upstream.http_response import NotConnected, Unanswered, UpstreamBroken
from router.upstream.http_response import Response as Response
from serving.http.tcp_keepalive import Probes, probe

IDLE_S = 30.0
"""Shorter than a node agent's own, so that it is the router that closes an idle connection."""
STALE_S = 1.0
"""A connection from the pool that breaks so soon, unanswered, had been closed while idle."""
_PROBES = Probes(idle_s=15, each_s=5, count=3, unread_s=30)
"""The kernel finds out within half a minute that a node has lost its power, or takes nothing of a
request."""
ONE_WRITE_BYTES = 64 * 1024
"""A larger body is not copied to join its head."""


class _Connection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self.closed = False
        self.idle_since_s = 0.0
        self._upstream = upstream
        self._transport: asyncio.Transport
        self._response: Response | None = None

    def ask(self, head: bytes, body: bytes) -> Response:
        """Sends a request; its answer, of which nothing has come."""
        response = self._response = Response(self)
        if self.closed:
            response.on_lost(None)
        elif len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def break_off(self, failure: UpstreamBroken) -> None:
        """As `abort`; whoever waits for an answer fails, also where its end is the connection's."""
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

    def on_answered(self, *, keep: bool) -> None:
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
            self.abort()  # nothing was asked
            return
        try:
            response.feed(data)
        except httptools.HttpParserError as error:
            response.fail(UpstreamBroken(f"The node's answer is not HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._upstream.on_lost(self)
        response, self._response = self._response, None
        if response is not None:
            response.on_lost(exc)


class Upstream:
    """The connections to one node: the last one used is the first one taken again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.host = HostName(parts.hostname or "", port)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def send(self, head: bytes, body: bytes) -> Response:
        """Sends a request; returns at the head of its answer.

        Raises `OSError` where no connection can be made, of these `NotConnected` where that takes
        too long, and `UpstreamBroken` where it breaks.
        """
        connection = self._take()
        if connection is not None:
            sent_s = time.monotonic()
            response = connection.ask(head, body)
            try:
                await response.head()
                return response
            except Unanswered:
                if time.monotonic() - sent_s > STALE_S:
                    raise
        response = (await self._connect()).ask(head, body)
        await response.head()
        return response

    def close(self) -> None:
        """Breaks every connection."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    def renew(self) -> None:
        """Takes no connection again that is idle now, and asks again where the node is."""
        while self._idle:
            self._idle.pop().abort()
        self.host.doubt()

    def break_all(self, failure: UpstreamBroken) -> None:
        """Every exchange fails so. New ones may be begun."""
        for connection in list(self._all):
            connection.break_off(failure)
        self._idle.clear()

    @property
    def open_connections(self) -> int:
        return len(self._all)

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
