"""A head and what follows it in the same turn of the loop leave in one write."""

from __future__ import annotations

import asyncio

from router.client_connection import JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorder(asyncio.Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_head_leaves_with_the_first_bytes_of_its_body() -> None:
    inner = Recorder()
    joining = JoiningTransport(inner)
    joining.write(HEAD)
    assert inner.written == []
    joining.write(b"body")
    joining.write(b"more")
    await asyncio.sleep(0)
    assert inner.written == [HEAD + b"body", b"more"]


async def test_a_head_that_nothing_follows_leaves_at_the_end_of_the_turn() -> None:
    inner = Recorder()
    JoiningTransport(inner).write(HEAD)
    await asyncio.sleep(0)
    assert inner.written == [HEAD]


async def test_an_informational_head_leaves_at_once() -> None:
    inner = Recorder()
    JoiningTransport(inner).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert inner.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_closing_sends_a_head_that_waits() -> None:
    inner = Recorder()
    joining = JoiningTransport(inner)
    joining.write(HEAD)
    joining.close()
    assert inner.written == [HEAD]
    assert joining.is_closing()
