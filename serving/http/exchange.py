"""One request of a client and its response: ASGI's `receive` and `send`, and methods for the relay
that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

EXTENSION = "mlx_fleet.exchange"
"""Key of the `Exchange` under an ASGI scope's `extensions`."""
AUTHENTICATED = "mlx_fleet.authenticated"
"""Key beside it, until a request of the connection has shown a valid key: a function to call once
one has."""
PAUSE_BYTES = 64 * 1024
"""Unread bytes of a request from which on reading is paused."""
_BODILESS = (204, 304)
_STATUS_LINES = {each.value: f"HTTP/1.1 {each} {each.phrase}\r\n".encode() for each in HTTPStatus}


def as_get(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The scope of a HEAD request as a GET, whose body its `Exchange` leaves out."""
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class ExchangeTransport(Protocol):
    """The connection that carries an exchange."""

    write: Callable[[bytes], None]
    write_paused: bool
    """True if the client reads more slowly than the response is written."""

    async def drained(self) -> None:
        """Waits while `write_paused`."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_response_complete(self, exchange: Exchange) -> None:
        """The response is complete."""


class Exchange:
    """One request and its response."""

    def __init__(self, connection: ExchangeTransport, method: bytes, version: str) -> None:
        self.disconnected = False
        """True once the client has disconnected; what is written after that is dropped."""
        self.on_disconnect: Callable[[], object] | None = None
        """Called if the client disconnects before its response is complete."""
        self.began = False
        self.status = 0
        """Status of the response, once it has begun."""
        self.complete = False
        self.keep_alive = version == "1.1"
        self.expects_continue = False
        self.body_complete = False
        self._connection = connection
        self._bodiless = method == b"HEAD"
        self._chunked = version == "1.1"
        self._head = b""
        """The response's head, until it is sent with the first bytes of the body."""
        self._remaining_bytes = 0
        """Remaining bytes of the length in the head; -1 if there is none."""
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._body_reported = False
        self._waiter: asyncio.Future[None] | None = None

    # --- ASGI ---

    async def receive(self) -> Message:
        if self.expects_continue and not self.began:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.expects_continue = False
        while not (self.disconnected or self.complete or self._pieces or self._body_unreported):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        pieces, self._pieces = self._pieces, []
        if self._unread_bytes > PAUSE_BYTES:
            self._connection.resume_reading()
        self._unread_bytes = 0
        self._body_reported = self.body_complete
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": not self.body_complete}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
            # A sender that waits for the first bytes of the body still sends its head now.
            asyncio.get_running_loop().call_soon(self._flush)
            return
        await self.drain()
        if message.get("more_body", False):
            self.write(message.get("body", b""))
        else:
            self.end(message.get("body", b""))

    @property
    def _body_unreported(self) -> bool:
        return self.body_complete and not self._body_reported

    # --- the response ---

    def begin(self, status: int, headers: Headers) -> None:
        """Starts the response; its head is sent with the first bytes of the body."""
        if self.began:
            raise RuntimeError("The response has begun already.")
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        self._bodiless = self._bodiless or status in _BODILESS
        if length is not None or self._bodiless:
            self._chunked = False
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False
        # A client that expected `100 Continue` may send its body without it, or not: both are
        # possible.
        self.keep_alive &= self.body_complete or not self.expects_continue
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines):
            raise RuntimeError("A header of the response contains a line break.")
        self.began, self.status = True, status
        self._remaining_bytes = -1 if length is None or self._bodiless else length
        self._head = head + b"\r\n"

    def write(self, data: bytes) -> None:
        """Writes a piece of the body. Check `paused` before writing much."""
        if not self.began or self.complete:
            raise RuntimeError("The response has not begun or is complete.")
        if data and not self._bodiless:
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            else:
                self._count(data)
            self._write(data)

    def end(self, data: bytes = b"") -> None:
        """Writes the last piece of the body, which may be empty."""
        if not self.began or self.complete:
            raise RuntimeError("The response has not begun or is complete.")
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        else:
            self._count(data)
            if self._remaining_bytes > 0:
                raise RuntimeError("The response is shorter than its head says.")
        self._write(data)
        self.complete = True
        self._wake()
        self._connection.on_response_complete(self)

    @property
    def paused(self) -> bool:
        """True if the client reads more slowly than the response is written."""
        return self._connection.write_paused and not self.disconnected

    async def drain(self) -> None:
        """Waits while `paused`."""
        if self.paused:
            await self._connection.drained()

    def _count(self, data: bytes) -> None:
        if self._remaining_bytes >= 0:
            self._remaining_bytes -= len(data)
            if self._remaining_bytes < 0:
                raise RuntimeError("The response is longer than its head says.")

    def _write(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        if data and not self.disconnected:
            self._connection.write(data)

    def _flush(self) -> None:
        if self._head:
            self._write(b"")

    # --- for the connection ---

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        before = self._unread_bytes
        self._unread_bytes += len(piece)
        if before <= PAUSE_BYTES < self._unread_bytes:
            self._connection.pause_reading()
        self._wake()

    def on_body_complete(self) -> None:
        self.body_complete = True
        self._wake()

    def on_lost(self) -> None:
        self.disconnected = True
        self._wake()
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is not None and not self.complete:
            on_disconnect()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def mark_authenticated(scope: Message) -> None:
    """Reports that the client of this request has shown a valid key. Until then its connection may
    be closed in favor of others."""
    known: Callable[[], None] | None = scope.get("extensions", {}).get(AUTHENTICATED)
    if known is not None:
        known()
