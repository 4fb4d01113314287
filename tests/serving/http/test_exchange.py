"""Tests the bytes of an answer on the wire, and the answers that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from serving.http.exchange import Exchange


class Wire:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write: Callable[[bytes], None] = self.written.append
        self.write_paused = False
        self.answered = 0

    async def drained(self) -> None:
        self.write_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_response_complete(self, exchange: Exchange) -> None:
        self.answered += 1


def exchange_on(wire: Wire, method: bytes = b"GET") -> Exchange:
    return Exchange(wire, method, "1.1")


def length(size: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", b"%d" % size)]


async def test_a_head_leaves_with_the_first_bytes_of_its_body() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.begin(200, length(4))
    assert wire.written == []
    exchange.write(b"bo")
    exchange.end(b"dy")
    assert wire.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbo", b"dy"]
    assert wire.answered == 1


async def test_a_head_that_an_app_sends_alone_leaves_at_the_end_of_the_turn() -> None:
    wire = Wire()
    await exchange_on(wire).send({"type": "http.response.start", "status": 204})
    await asyncio.sleep(0)
    assert wire.written == [b"HTTP/1.1 204 No Content\r\n\r\n"]


async def test_a_piece_and_the_end_of_a_chunked_body_leave_in_one_write() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.begin(200, ())
    exchange.write(b"first")
    exchange.end(b"last")
    assert wire.written[1:] == [b"4\r\nlast\r\n0\r\n\r\n"]


async def test_a_header_with_a_line_break_is_refused_before_anything_is_sent() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    with pytest.raises(RuntimeError, match="line break"):
        exchange.begin(200, [(b"x", b"a\r\nset-cookie: b")])
    exchange.begin(500, length(0))
    exchange.end()
    assert wire.written == [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"]


@pytest.mark.parametrize(("promised", "data"), [(3, b"four"), (5, b"four")])
async def test_a_body_of_another_length_than_promised_is_refused(
    promised: int, data: bytes
) -> None:
    exchange = exchange_on(Wire())
    exchange.begin(200, length(promised))
    with pytest.raises(RuntimeError, match="than its head says"):
        exchange.end(data)
    assert not exchange.complete


async def test_there_is_one_answer() -> None:
    exchange = exchange_on(Wire())
    with pytest.raises(RuntimeError, match="not begun"):
        exchange.write(b"body")
    exchange.begin(200, length(0))
    with pytest.raises(RuntimeError, match="begun already"):
        exchange.begin(200, length(0))
    exchange.end()
    with pytest.raises(RuntimeError, match="complete"):
        exchange.end()


async def test_what_is_written_to_a_caller_that_has_gone_is_dropped() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    wire.write_paused = True
    exchange.on_lost()
    assert not exchange.paused
    exchange.begin(200, ())
    exchange.end(b"body")
    assert wire.written == []
