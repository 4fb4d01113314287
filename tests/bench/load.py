"""A load generator that costs little itself: raw HTTP/1.1 over kept-alive connections.

It knows just enough HTTP for a benchmark's own servers. Times are of `time.perf_counter`.
"""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

FIRST_CONTENT = b'"content":" tok"'
"""In the first chunk of a fake backend's stream that has content."""

_LAST_CHUNK = b"0\r\n\r\n"
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """When one request was sent and answered, in seconds."""

    ok: bool
    sent_s: float
    first_s: float
    """First content of a stream; the end where there is none."""
    end_s: float


@dataclass(slots=True)
class Tally:
    """The results of a run of the load."""

    seconds: list[float] = field(default_factory=list)
    """Request to last byte."""
    first_seconds: list[float] = field(default_factory=list)
    """Request to first content."""
    failed: int = 0

    def add(self, answer: Answer, began_s: float) -> None:
        if not answer.ok:
            self.failed += 1
            return
        self.seconds.append(answer.end_s - began_s)
        self.first_seconds.append(answer.first_s - began_s)


def payload(port: int, body: bytes, key: str = "") -> bytes:
    """The bytes of a chat request."""
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if key:
        head.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*head, "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self) -> None:
        self.on_answer: Callable[[Connection, Answer], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._sent_s = 0.0
        self._first_s = 0.0
        self.has_content = asyncio.Event()
        """Set at the first content of a stream."""
        self._body_end = 0
        """Length of head and body; -1 where the body is chunked, 0 before the head is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.on_answer is not None and self._sent_s:
            self._finish(ok=False)

    @property
    def alive(self) -> bool:
        return self._transport is not None

    def close(self) -> None:
        self.on_answer = None
        if self._transport is not None:
            self._transport.close()

    def send(self, request: bytes) -> None:
        self._buffer.clear()
        self._body_end = 0
        self._first_s = 0.0
        self._sent_s = time.perf_counter()
        if self._transport is None:
            self._finish(ok=False)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if self._body_end == 0:
            self._read_head()
        if self._body_end == -1:
            if not self._first_s and FIRST_CONTENT in buffer:
                self._first_s = time.perf_counter()
                self.has_content.set()
            done = buffer.endswith(_LAST_CHUNK)
        else:
            done = 0 < self._body_end <= len(buffer)
        if done:
            self._finish(ok=buffer.startswith(b"HTTP/1.1 200"))

    def _read_head(self) -> None:
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        _, found, rest = head.partition(b"content-length:")
        self._body_end = end + 4 + int(rest.partition(b"\r\n")[0]) if found else -1

    def _finish(self, *, ok: bool) -> None:
        now_s = time.perf_counter()
        answer = Answer(ok, self._sent_s, self._first_s or now_s, now_s)
        self._sent_s = 0.0
        if self.on_answer is not None:
            self.on_answer(self, answer)


class Client:
    """A set of connections to one port of this machine."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, port: int, count: int) -> "Client":
        loop = asyncio.get_running_loop()
        opened = []
        for _ in range(count):
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            opened.append(connection)
        return cls(opened)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def begin(self, request: bytes) -> None:
        """Sends the request on each connection; returns when each has had content."""
        for connection in self._connections:
            connection.send(request)
        for connection in self._connections:
            await connection.has_content.wait()

    async def closed_loop(
        self, requests: Sequence[bytes], *, count: int = 0, seconds: float = 0.0
    ) -> Tally:
        """Each connection sends its next request when the last is answered, until `count` have
        been sent or `seconds` are over."""
        tally = Tally()
        over = asyncio.get_running_loop().create_future()
        deadline_s = time.perf_counter() + (seconds or 3600.0)
        bodies = itertools.cycle(requests)
        left = count or 1 << 60
        busy = len(self._connections)

        def on_answer(connection: Connection, answer: Answer) -> None:
            nonlocal left, busy
            tally.add(answer, answer.sent_s)
            if answer.ok and left > 0 and answer.end_s < deadline_s:
                left -= 1
                connection.send(next(bodies))
                return
            busy -= 1
            if busy == 0:
                over.set_result(None)

        left -= busy
        for connection in self._connections:
            connection.on_answer = on_answer
            connection.send(next(bodies))
        await over
        return tally

    async def open_loop(self, request: bytes, rate: float, seconds: float) -> Tally:
        """Requests arrive at random, `rate` a second, whether or not earlier ones are answered;
        one that finds all connections busy waits, and its wait counts."""
        loop = _OpenLoop(self._connections, request, rate, seconds)
        loop.on_arrival()
        await loop.over
        return loop.tally


class _OpenLoop:
    """The state of one `Client.open_loop`."""

    def __init__(
        self, connections: Sequence[Connection], request: bytes, rate: float, seconds: float
    ) -> None:
        self.tally = Tally()
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._request = request
        self._rate = rate
        self._chance = random.Random(7)
        self._due_s = self._loop.time()
        self._end_s = self._due_s + seconds
        self._idle = list(connections)
        self._arrived_s: dict[Connection, float] = {}
        """Arrival times of the requests that are being served."""
        self._waiting: deque[float] = deque()
        for connection in connections:
            connection.on_answer = self._on_answer

    def on_arrival(self) -> None:
        self._waiting.append(time.perf_counter())
        self._due_s += self._chance.expovariate(self._rate)
        if self._due_s < self._end_s:
            self._loop.call_at(self._due_s, self.on_arrival)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._idle:
            connection = self._idle.pop()
            if connection.alive:
                self._arrived_s[connection] = self._waiting.popleft()
                connection.send(self._request)

    def _on_answer(self, connection: Connection, answer: Answer) -> None:
        self.tally.add(answer, self._arrived_s.pop(connection))
        self._idle.append(connection)
        self._serve()
        if self._due_s >= self._end_s and not self._arrived_s and not self.over.done():
            self.over.set_result(None)
