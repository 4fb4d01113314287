"""An HTTP/1.1 client for inference requests to one node: pooled connections, bodies as they come.

Our own by measurement (docs/decisions/0008): it sends a request with one write, wakes its reader
once for everything that one read brought, and makes no task.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from router.settings import CONNECT_TIMEOUT_S

IDLE_S = 30.0
"""Shorter than a node agent's own, so that it is the router that closes an idle connection."""
STALE_S = 1.0
"""A connection from the pool that breaks so soon, unanswered, had been closed while idle."""
PAUSE_BYTES = 64 * 1024
"""A body of which more is unread makes the node wait: nobody's memory grows for a slow caller."""
MAX_HEAD_BYTES = 64 * 1024
ONE_WRITE_BYTES = 64 * 1024
"""A larger body is not copied to join its head."""


class UpstreamBroken(ConnectionError):
    """The connection to the node broke, or carried what is not HTTP."""


class Unanswered(UpstreamBroken):
    """The node closed the connection before its answer."""


class Response:
    """One answer: its head, and its body as it comes."""

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """By name in lower case."""
        self._connection = connection
        self._head_bytes = 0
        self._head_complete = False
        self._complete = False
        self._failure: UpstreamBroken | None = None
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    # --- for the reader ---

    async def head(self) -> None:
        """Waits for the head. Raises `UpstreamBroken`."""
        while not self._head_complete:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def read_any(self) -> bytes:
        """What has come of the body, waiting for some; nothing at its end.

        Raises `UpstreamBroken` once the bytes that came before are read.
        """
        while not self._pieces and not self._complete and self._failure is None:
            await self._wait()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            if self._unread_bytes > PAUSE_BYTES and not self._complete:
                self._connection.resume_reading()
            self._unread_bytes = 0
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._failure is not None:
            raise self._failure
        return b""

    async def read_all(self, max_bytes: int = sys.maxsize) -> bytes:
        """The rest of the body. Raises `UpstreamBroken`, also where it is longer than
        `max_bytes`."""
        pieces, size = [], 0
        while piece := await self.read_any():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise UpstreamBroken("The node's answer is too long.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Breaks the connection unless the answer is whole: so a node learns that nobody reads."""
        if not self._complete:
            self._connection.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- for the connection ---

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise UpstreamBroken("The head of the answer is too long.")
        self.headers[name.lower()] = value

    def on_head(self, status: int) -> None:
        if status < 200:
            self.headers.clear()  # an informational head; the answer's own follows
            return
        self.status = status
        self._head_complete = True

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        before = self._unread_bytes
        self._unread_bytes += len(piece)
        if before <= PAUSE_BYTES < self._unread_bytes:
            self._connection.pause_reading()

    def on_end(self) -> bool:
        """Whether the answer is whole: an informational one ends, too."""
        if self._head_complete:
            self._complete = True
            if self._unread_bytes > PAUSE_BYTES:
                self._connection.resume_reading()
        return self._complete

    def on_lost(self, error: Exception | None) -> None:
        """The connection is closed. A body without a length of its own ends with it."""
        unframed = not self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if error is None and self._head_complete and unframed:
            self._complete = True
        elif self._failure is None:
            self._failure = (
                UpstreamBroken("The node closed the connection in the middle of its answer.")
                if self._head_bytes
                else Unanswered("The node closed the connection before its answer.")
            )
        self.wake()

    def on_failure(self, failure: UpstreamBroken) -> None:
        if not self._complete:
            self._failure = failure
        self.wake()


class _Connection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self.closed = False
        self.idle_since_s = 0.0
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None

    async def exchange(self, head: bytes, body: bytes) -> Response:
        """Sends a request; returns at the head of its answer. Raises `UpstreamBroken`."""
        assert self._transport is not None
        response = self._response = Response(self)
        if self.closed:
            response.on_lost(None)
        elif len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    def break_off(self, reason: str) -> None:
        """As `abort`; whoever waits for an answer fails, also where its end is the connection's."""
        if self._response is not None:
            self._response.on_failure(UpstreamBroken(reason))
        self.abort()

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            probe(raw)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            response.on_failure(UpstreamBroken(f"The node's answer is not HTTP: {error}"))
            self.abort()
        response.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._upstream.on_lost(self)
        response, self._response = self._response, None
        if response is not None:
            response.on_lost(exc)

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self._asked().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._asked().on_head(self._parser.get_status_code())

    def on_body(self, piece: bytes) -> None:
        self._asked().on_body(piece)

    def on_message_complete(self) -> None:
        # After this callback the parser forgets whether the connection may be kept.
        keep = self._parser.should_keep_alive()
        if not self._asked().on_end():
            return
        self._response = None
        if keep and not self.closed:
            self._upstream.on_idle(self)
        else:
            self.closed = True
            assert self._transport is not None
            self._transport.close()

    def _asked(self) -> Response:
        if self._response is None:
            raise UpstreamBroken("The node sent more than it was asked for.")
        return self._response


class Upstream:
    """The connections to one node: the last one used is the first one taken again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def send(self, head: bytes, body: bytes) -> Response:
        """Sends a request; returns at the head of its answer.

        Raises `OSError` where no connection can be made, `UpstreamBroken` where it breaks.
        """
        connection = self._take()
        if connection is not None:
            sent_s = time.monotonic()
            try:
                return await connection.exchange(head, body)
            except Unanswered:
                if time.monotonic() - sent_s > STALE_S:
                    raise
        return await (await self._connect()).exchange(head, body)

    def close(self) -> None:
        """Breaks every connection."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    def break_all(self) -> None:
        """Fails every exchange: the node is not there any more. New ones may be begun."""
        for connection in list(self._all):
            connection.break_off("The node has gone silent.")
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
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self._host, self._port, ssl=self._tls
            )
        self._all.add(connection)
        return connection


def probe(raw: socket.socket) -> None:
    """Makes the kernel find out, within half a minute, that a node has lost its power."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    if idle is not None:
        raw.setsockopt(socket.IPPROTO_TCP, idle, 15)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
