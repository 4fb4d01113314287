"""One answer of a node: its head, and its body as it comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Protocol

import httptools

PAUSE_BYTES = 64 * 1024
"""A body of which more is unread makes the node wait: nobody's memory grows for a slow caller."""
MAX_HEAD_BYTES = 64 * 1024


class UpstreamBroken(ConnectionError):
    """The connection to the node broke, or carried what is not HTTP."""


class Unanswered(UpstreamBroken):
    """The node closed the connection before its answer."""


class CutOff(UpstreamBroken):
    """The router itself has ended the request on its node, since an admin wants the node empty."""


class NotConnected(UpstreamBroken):
    """The node does not take a connection in time."""


class Connection(Protocol):
    """What carries an answer."""

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_answered(self, *, keep: bool) -> None:
        """The answer is whole; `keep`: the node can be asked again."""


class Response:
    """One answer: its head, and its body as it comes."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """By name in lower case."""
        self._connection = connection
        self._head_bytes = 0
        self._complete = False
        self._failure: UpstreamBroken | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """The parser's callback for each piece: a node's burst of chunks makes many."""
        self._unread_bytes = 0
        """Of what came, its framing included."""
        self._sink: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        """Deleted at the end, since it refers back."""

    # --- for the reader ---

    async def head(self) -> None:
        """Waits for the head; whoever gives that up breaks the connection.

        Raises `UpstreamBroken`.
        """
        try:
            while not (self.status or self._failure):
                await self._news()
        except BaseException:
            self.close()
            raise
        if self._failure is not None and not self.status:
            self.close()
            raise self._failure

    async def read_any(self) -> bytes:
        """What has come of the body, waiting for some; nothing at its end.

        Raises `UpstreamBroken` once the bytes that came before are read.
        """
        while not (self._pieces or self._complete or self._failure):
            await self._news()
        if self._failure is not None and not self._pieces:
            raise self._failure
        return self._take()

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

    def give_back(self, body: bytes) -> None:
        """What `read_all` gave, to be read once more."""
        self._pieces.append(body)

    async def pump(self, sink: Callable[[bytes], bool]) -> bool:
        """Gives `sink` what comes, within the read that brings it. Returns True at the body's end,
        and False once the sink does, which has then taken its piece but wants no other now.

        Raises `UpstreamBroken` once the bytes that came before are given.
        """
        if (piece := self._take()) and not sink(piece):
            return False
        while not (self._complete or self._failure):
            self._sink = sink
            try:
                await self._news()
                if self._sink is None:
                    return False
            finally:
                self._sink = None
        if self._failure is not None:
            raise self._failure
        return True

    def close(self) -> None:
        """Breaks the connection unless the answer is whole: so a node learns that nobody reads."""
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

    def _news(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    # --- for the connection ---

    def feed(self, data: bytes) -> None:
        """What the node sent. Raises `httptools.HttpParserError`."""
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
            self.fail(UpstreamBroken("The head of the answer is too long."))
            self._connection.abort()

    def on_lost(self, error: Exception | None) -> None:
        """The connection is closed. A body without a length of its own ends with it."""
        del self._parser
        framed = self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if error is None and self.status and not framed:
            self._complete = True
            self._hand_over()
        elif self._head_bytes or self.status:
            self.fail(UpstreamBroken("The node closed the connection in the middle of its answer."))
        else:
            self.fail(Unanswered("The node closed the connection before its answer."))

    def fail(self, failure: UpstreamBroken) -> None:
        """The first failure is the one that counts."""
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
            raise UpstreamBroken("The node sent more than it was asked for.")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are no headers, and of no use here.
        if not self.status:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()  # an informational head; the answer's own follows
        else:
            self.status = status

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
            # After this callback the parser forgets whether the connection may be kept.
            keep = self._parser.should_keep_alive()
            del self._parser
            self._connection.on_answered(keep=keep)
