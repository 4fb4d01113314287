"""One response of a node: its head, and its body as it arrives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from router.upstream.http_failures import NoResponse, UpstreamBroken

PAUSE_BYTES = 64 * 1024
"""Unread bytes of a body above which the connection stops reading, so that a slow client does not
fill the memory."""
MAX_HEAD_BYTES = 64 * 1024


class Connection(Protocol):
    """The connection that carries a response."""

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_complete(self, *, keep: bool) -> None:
        """Called when the response is complete; with `keep` the connection can be reused."""


class Response:
    """One response: its head, and its body as it arrives."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Headers by name in lower case."""
        self._connection = connection
        self._head_bytes = 0
        self._complete = False
        self._failure: UpstreamBroken | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """The parser's callback for each piece; one read may contain many."""
        self._unread_bytes = 0
        """Unread bytes as received, with their framing."""
        self._sink: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        """None at the end, since it is part of a reference cycle."""

    # --- for the reader ---

    async def head(self) -> None:
        """Waits for the head; a cancelled wait breaks the connection.

        Raises `UpstreamBroken`.
        """
        try:
            while not (self.status or self._failure):
                await self._wait_for_data()
        except BaseException:
            self.close()
            raise
        if self._failure is not None and not self.status:
            self.close()
            raise self._failure

    @property
    def is_complete(self) -> bool:
        """True if all of the body has arrived."""
        return self._complete

    async def read_any(self) -> bytes:
        """Waits for a part of the body and returns it; returns b"" at its end.

        Raises `UpstreamBroken` once the bytes before the failure are read.
        """
        while not (self._pieces or self._complete or self._failure):
            await self._wait_for_data()
        if self._failure is not None and not self._pieces:
            raise self._failure
        return self._take()

    async def read_all(self, max_bytes: int = sys.maxsize) -> bytes:
        """Reads the rest of the body. Raises `UpstreamBroken`, also if it is longer than
        `max_bytes`."""
        pieces, size = [], 0
        while piece := await self.read_any():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise UpstreamBroken("The node's response is too long.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def put_back(self, body: bytes) -> None:
        """Puts back what `read_all` returned, so that it can be read again."""
        self._pieces.append(body)

    async def pump(self, sink: Callable[[bytes], bool]) -> bool:
        """Passes the body to `sink` piece by piece, within the read that brings it. Returns True at
        the body's end, and False if the sink returned False, which has then accepted its piece but
        no more.

        Raises `UpstreamBroken` once the bytes before the failure are passed on.
        """
        if (piece := self._take()) and not sink(piece):
            return False
        while not (self._complete or self._failure):
            self._sink = sink
            try:
                await self._wait_for_data()
                if self._sink is None:
                    return False
            finally:
                self._sink = None
        if self._failure is not None:
            raise self._failure
        return True

    def close(self) -> None:
        """Breaks the connection unless the response is complete, so that the node cancels its
        request."""
        if not self._complete:
            self._connection.abort()

    def _take(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._unread_bytes > PAUSE_BYTES and not self._complete:
            self._connection.resume_reading()
        self._unread_bytes = 0
        return data

    def _wait_for_data(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    # --- for the connection ---

    def feed(self, data: bytes) -> None:
        """Parses data from the node. Raises `httptools.HttpParserError`."""
        self._parser.feed_data(data)
        if not self.status:
            self._count_head(data)
        self._hand_over()
        if self._pieces and not self._complete:
            before = self._unread_bytes
            self._unread_bytes += len(data)
            if before <= PAUSE_BYTES < self._unread_bytes:
                self._connection.pause_reading()

    def _count_head(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.fail(UpstreamBroken("The head of the response is too long."))
            self._connection.abort()

    def on_lost(self, error: Exception | None) -> None:
        """Handles the closed connection; it completes a body that has no length of its own."""
        self._parser = None
        framed = self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if error is None and self.status and not framed:
            self._complete = True
            self._hand_over()
        elif self._head_bytes or self.status:
            self.fail(UpstreamBroken("The node closed the connection in the middle of a response."))
        else:
            self.fail(NoResponse("The node closed the connection before its response."))

    def fail(self, failure: UpstreamBroken) -> None:
        """Fails the response; only the first failure counts."""
        if not self._complete and self._failure is None:
            self._failure = failure
        self._hand_over()

    def _hand_over(self) -> None:
        if self._sink is not None and self._pieces:
            if not self._sink(self._take()):
                self._sink = None
            elif not (self._complete or self._failure):
                return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- httptools ---

    def on_message_begin(self) -> None:
        if self._complete:
            raise UpstreamBroken("The node sent more than was requested.")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are ignored.
        if not self.status:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()  # an informational head; the final one follows
        else:
            self.status = status

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
            # After this callback the parser forgets if the connection may be kept.
            keep = self._parser.should_keep_alive()
            self._parser = None
            self._connection.on_complete(keep=keep)
