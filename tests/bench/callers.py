"""Callers of an agent that are many, or that mean it ill: what others get beside them."""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.http.timeouts import DEFAULT_TIMEOUTS
from serving.open_files import allow_many_files
from tests.bench import processes
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores
from tests.bench.shared import CACHE

FEW_FILES = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh")
STREAMS = 300
STREAM_TOKENS = 20
HEADS = 1000
HEALTHS = 20
HEALTH_MS = 100.0
CLOSED_S = 1.5 * DEFAULT_TIMEOUTS.head_s + 1
"""A connection is looked at each half of what a head may take; a second for the rest."""
_LIMIT_S = 120.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def measure(cores: Cores) -> Iterator[Figure]:
    allow_many_files()
    with tempfile.TemporaryDirectory() as folder, _agent(cores, Path(folder)) as (port, token):
        yield asyncio.run(_streams(port, token))
        health_s, closed_s = asyncio.run(_beside_heads(port))
    what = f"{HEADS} half-open heads at an agent"
    note = f"slowest of {HEALTHS}, each on a connection of its own; median {median(health_s):.3f} s"
    worst_ms = max(health_s) * 1e3
    yield Figure(f"{what}, /health", worst_ms, "ms", HEALTH_MS, note=note, samples=tuple(health_s))
    note = f"since the last was there; a head may take {DEFAULT_TIMEOUTS.head_s:g} s"
    yield Figure(f"{what}, all closed", closed_s, "s", CLOSED_S, note=note)


@contextmanager
def _agent(cores: Cores, home: Path) -> Iterator[tuple[int, str]]:
    """A scripted agent whose shell allows 256 open files; its port and its token."""
    port, log = processes.free_port(), CACHE / "logs" / "callers.log"
    argv = [*FEW_FILES, *processes.command("node-agent"), "serve", "--engine", "scripted"]
    with processes.running([*argv, "--home", str(home), "--port", str(port)], cores, log) as agent:
        processes.wait_until(processes.answers(f"http://127.0.0.1:{port}/health"), agent, log)
        yield port, (home / "token").read_text().strip()


async def _streams(port: int, token: str) -> Figure:
    """Each is open before the first request is sent."""
    chat = {"model": "scripted", "stream": True, "max_tokens": STREAM_TOKENS}
    body = json.dumps({**chat, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"authorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
    open_ = [await _opened(port, head.encode()) for _ in range(STREAMS)]
    began_s = time.monotonic()
    for _, writer in open_:
        writer.write(body)
    ends = await asyncio.gather(*(_rest(each) for each in open_))
    whole = sum(end.rstrip().endswith(b"0") and b"data: [DONE]" in end for end in ends)
    note = f"in {time.monotonic() - began_s:.1f} s, all at once, {STREAM_TOKENS} tokens each"
    what = f"{STREAMS} streams at an agent under `ulimit -n 256`, whole"
    return Figure(what, whole, "", STREAMS, at_least=True, note=note)


async def _beside_heads(port: int) -> tuple[list[float], float]:
    """Seconds of each `/health` beside the heads; seconds until all of those are closed."""
    heads = [await _opened(port, b"GET /health HTT") for _ in range(HEADS)]
    began_s = time.monotonic()
    health_s = [await _health(port) for _ in range(HEALTHS)]
    await asyncio.gather(*(_rest(each) for each in heads))
    return health_s, time.monotonic() - began_s


async def _health(port: int) -> float:
    began_s = time.perf_counter()
    opened = await _opened(
        port, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    end = await _rest(opened)
    took_s = time.perf_counter() - began_s
    if b" 200 " not in end.partition(b"\r\n")[0]:
        raise processes.BenchFailure(f"/health returns {end[:200]!r}")
    return took_s


async def _opened(port: int, sent: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def _rest(connection: Connection) -> bytes:
    """All that arrives until the other side closes, however it does."""
    reader, writer = connection
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()
