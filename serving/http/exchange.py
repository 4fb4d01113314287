"""One request of a caller and its answer: ASGI's `receive` and `send`, and what works without
waiting, for the relay."""

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
"""Under `extensions`, where an ASGI scope holds its `Exchange`."""
VOUCH = "mlx_fleet.vouch"
"""Beside it, until a request of the connection has shown a key: what to call once one has."""
PAUSE_BYTES = 64 * 1024
"""A request of which more is unread makes its caller wait."""
_BODILESS = (204, 304)
_STATUS_LINES = {each.value: f"HTTP/1.1 {each} {each.phrase}\r\n".encode() for each in HTTPStatus}


def as_get(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The scope of a HEAD as that of the GET whose body its `Exchange` leaves out."""
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class Connection(Protocol):
    """What carries an exchange."""

    write: Callable[[bytes], None]
    write_paused: bool
    """Whether the caller takes less than it is sent."""

    async def drained(self) -> None:
        """Waits while `write_paused`."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_answered(self, exchange: Exchange) -> None:
        """The answer is whole."""


class Exchange:
    """What a connection makes of each request."""

    def __init__(self, connection: Connection, method: bytes, version: str) -> None:
        self.left = False
        """Whether the caller has gone; what is written after that is dropped."""
        self.on_left: Callable[[], object] | None = None
        """Called where the caller goes before its answer is whole."""
        self.began = False
        self.status = 0
        """Of the answer, once it has begun."""
        self.complete = False
        self.keep_alive = version == "1.1"
        self.expects_continue = False
        self.body_complete = False
        self._connection = connection
        self._bodiless = method == b"HEAD"
        self._chunked = version == "1.1"
        self._head = b""
        """Of the answer, until it leaves with the first bytes of its body."""
        self._left_bytes = 0
        """Of the length that the head promises."""
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._body_told = False
        self._waiter: asyncio.Future[None] | None = None

    # --- ASGI ---

    async def receive(self) -> Message:
        if self.expects_continue and not self.began:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.expects_continue = False
        while not (self.left or self.complete or self._pieces or self._untold):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.left or self.complete:
            return {"type": "http.disconnect"}
        pieces, self._pieces = self._pieces, []
        if self._unread_bytes > PAUSE_BYTES:
            self._connection.resume_reading()
        self._unread_bytes = 0
        self._body_told = self.body_complete
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": not self.body_complete}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
            # Who sends a head and then waits for the body's first bytes shows the head first.
            asyncio.get_running_loop().call_soon(self._flush)
            return
        await self.drain()
        if message.get("more_body", False):
            self.write(message.get("body", b""))
        else:
            self.end(message.get("body", b""))

    @property
    def _untold(self) -> bool:
        return self.body_complete and not self._body_told

    # --- the answer ---

    def begin(self, status: int, headers: Headers) -> None:
        """The answer's head, which leaves with the first bytes of the body."""
        if self.began:
            raise RuntimeError("The answer has begun already.")
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
        # Whether a caller that was not told to go on sends its body all the same, nobody can tell.
        self.keep_alive &= self.body_complete or not self.expects_continue
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines):
            raise RuntimeError("A header of the answer holds a line break.")
        self.began, self.status = True, status
        self._left_bytes = -1 if length is None or self._bodiless else length
        self._head = head + b"\r\n"

    def write(self, data: bytes) -> None:
        """A piece of the answer's body. Whoever writes much asks `paused` first."""
        if not self.began or self.complete:
            raise RuntimeError("The answer has not begun or is complete.")
        if data and not self._bodiless:
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            else:
                self._count(data)
            self._write(data)

    def end(self, data: bytes = b"") -> None:
        """The last piece of the answer's body, which may be empty."""
        if not self.began or self.complete:
            raise RuntimeError("The answer has not begun or is complete.")
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        else:
            self._count(data)
            if self._left_bytes > 0:
                raise RuntimeError("The answer is shorter than its head says.")
        self._write(data)
        self.complete = True
        self._wake()
        self._connection.on_answered(self)

    @property
    def paused(self) -> bool:
        """Whether the caller takes less than it is sent."""
        return self._connection.write_paused and not self.left

    async def drain(self) -> None:
        """Waits while `paused`."""
        if self.paused:
            await self._connection.drained()

    def _count(self, data: bytes) -> None:
        if self._left_bytes >= 0:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                raise RuntimeError("The answer is longer than its head says.")

    def _write(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        if data and not self.left:
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
        self.left = True
        self._wake()
        on_left, self.on_left = self.on_left, None
        if on_left is not None and not self.complete:
            on_left()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def vouch(scope: Message) -> None:
    """Says that the caller of this request has shown a valid key: until then its connection may be
    cut off to make room for others."""
    known: Callable[[], None] | None = scope.get("extensions", {}).get(VOUCH)
    if known is not None:
        known()
