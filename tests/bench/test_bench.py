"""The bench's own arithmetic and load generator, and that it stands without the shared tools."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.bench.figures import Figure, percentile
from tests.bench.load import Client, payload
from tests.bench.peer_report import cell
from tests.bench.processes import PROJECT

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"
STREAMED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b'14\r\n{"content":" tok"}\n\n\r\n',
    b"0\r\n\r\n",
)


@asynccontextmanager
async def server_of(*pieces: bytes, gap_s: float = 0.0) -> AsyncIterator[int]:
    """A server that answers every request with the pieces; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(gap_s)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)
        writer.close()
        await writer.wait_closed()

    handlers: list[asyncio.Task[None]] = []

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*handlers), timeout=10)


@pytest.mark.parametrize("module", ["tests.bench", "tests.bench.peers"])
@pytest.mark.parametrize("shared", [None, "/nowhere"])
def test_without_the_shared_tools_one_line_says_so(module: str, shared: str | None) -> None:
    environ = {key: text for key, text in os.environ.items() if key != "MLX_FLEET_SHARED"}
    if shared is not None:
        environ["MLX_FLEET_SHARED"] = shared
    command = [sys.executable, "-m", module]
    done = subprocess.run(
        command, cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "MLX_FLEET_SHARED" in done.stdout


def test_a_bar_is_a_most_or_a_least() -> None:
    assert Figure("x", 0.4, "ms", 0.5).passed is True
    assert Figure("x", 0.6, "ms", 0.5).passed is False
    assert Figure("x", 0.9, "", 0.95, at_least=True).passed is False
    assert Figure("x", 0.9, "").passed is None


def test_percentile_interpolates() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0


async def test_the_closed_loop_sends_as_many_requests_as_asked() -> None:
    async with server_of(WHOLE) as port:
        client = await Client.open(port, 3)
        tally = await client.closed_loop([payload(port, b"{}", "key")], count=10)
        client.close()
    assert (len(tally.seconds), tally.failed) == (10, 0)


async def test_the_first_content_of_a_stream_has_its_own_time() -> None:
    async with server_of(*STREAMED, gap_s=0.02) as port:
        client = await Client.open(port, 1)
        tally = await client.closed_loop([payload(port, b"{}")], count=2)
        client.close()
    assert all(
        first < whole for first, whole in zip(tally.first_seconds, tally.seconds, strict=True)
    )


async def test_an_answer_other_than_200_counts_as_failed() -> None:
    async with server_of(REFUSED) as port:
        client = await Client.open(port, 2)
        tally = await client.closed_loop([payload(port, b"{}")], count=10)
        client.close()
    assert (tally.seconds, tally.failed) == ([], 2)


async def test_the_open_loop_ends_when_its_last_request_is_answered() -> None:
    async with server_of(WHOLE, gap_s=0.01) as port:
        client = await Client.open(port, 2)
        tally = await client.open_loop(payload(port, b"{}"), rate=200.0, seconds=0.2)
        client.close()
    assert tally.failed == 0
    assert 10 < len(tally.seconds) < 100


def test_a_cell_of_the_report_is_empty_where_there_is_no_value() -> None:
    lines = json.loads('[{"phase": "lat1", "rps": 12.5, "split": [1, 2]}]')
    assert cell(lines, ("lat1", "rps")) == "12.5"
    assert cell(lines, ("lat1", "split")) == "1/2"
    assert cell(lines, ("lat1", "rps", "p50")) == ""
    assert cell(lines, ("rps64", "rps")) == ""
