"""Measures the cost of the router in front of two fake backends."""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import uvloop

from tests.bench import processes
from tests.bench.figures import Figure, median, percentile
from tests.bench.load import Client, Tally, payload
from tests.bench.machine import Cores
from tests.bench.shared import CACHE, SharedTools
from tests.bench.tls_certificate import loopback_pem

MODEL = "fake"
PACED_MODEL = "paced"
SLOW_MODEL = "slow"
OPEN_STREAMS = 1000
OPEN_STREAMS_S = 60.0
"""Most seconds until the first content of so many streams."""
CONNECTIONS = 64
ROWS = 1024
"""Rows of a backend: so many that no request waits for one."""
STREAM_CHUNKS = 200
RATE = 200.0
RATE_CONNECTIONS = 16
LARGE_BODY_BYTES = 32 * 1024
LARGE_BODIES = 64

YARDSTICK_US = 29.0
"""CPU that a fake backend took for a request on the machine where the bars were set."""
BAR_ADDED_MS = 0.6
BAR_ADDED_TTFT_MS = 0.5
BAR_ADDED_P99_MS = 5.0
BAR_REQUEST_US = 250.0
BAR_RELAY_ALONE_US = 90.0
BAR_LARGE_REQUEST_US = 400.0
BAR_PACED_CHUNK_US = 26.0
BAR_BURST_CHUNK_US = 4.0
BAR_STREAMS_MIB = 200.0 * 1e6 / 2**20


@dataclass(frozen=True, slots=True)
class Effort:
    """The duration of the rows' measurements."""

    blocks: int
    block_requests: int
    seconds: float
    streams: int
    """Streams in all for the rows per chunk."""

    @classmethod
    def of(cls, *, quick: bool) -> "Effort":
        return cls(10, 30, 2.0, 64) if quick else cls(40, 50, 6.0, 256)


@dataclass(frozen=True, slots=True)
class Backends:
    """Two fake backends that run."""

    ports: tuple[int, ...]
    processes: tuple[psutil.Process, ...]
    urls: tuple[str, ...]
    """Where the router reaches them."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way from the router to the backends."""

    certificate: Path | None = None
    """The certificate of the backends, which then speak TLS; None for plain HTTP."""

    def label(self, what: str) -> str:
        return what if self.certificate is None else f"{what}, TLS to nodes"


PLAIN = Way()


@dataclass(frozen=True, slots=True)
class Bed:
    """A running router and its backends."""

    tools: SharedTools
    cores: Cores
    router: psutil.Process
    port: int
    key: str
    admin_key: str
    backends: Backends
    effort: Effort
    way: Way

    def direct(self, body: bytes) -> bytes:
        return payload(self.backends.ports[0], body)

    def routed(self, body: bytes) -> bytes:
        return payload(self.port, body, self.key)

    def add(self, backends: Backends) -> None:
        for each in backends.urls:
            name = f"fake{each.rpartition(':')[2]}"
            node = {"url": each, "name": name, "kind": "openai", "max_rows": ROWS}
            url = f"http://127.0.0.1:{self.port}/admin/nodes"
            processes.fetch(url, self.admin_key, node)


def measure(tools: SharedTools, cores: Cores, *, quick: bool) -> Iterator[Figure]:
    """All rows of the router, one after the other, without TLS and with it."""
    effort = Effort.of(quick=quick)
    with test_bed(tools, cores, effort) as bed:
        yield yardstick(bed)
        yield from rows(bed)
    alone = [sys.executable, "-m", "tests.bench.relay_alone"]
    with test_bed(tools, cores, effort, alone) as bed:
        uvloop.run(closed(bed.port, [bed.routed(small_body())], 8, seconds=1.0))
        what = "router: CPU per request, relay alone"
        yield cpu_per_request(bed, what, [small_body()], BAR_RELAY_ALONE_US)
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder:
        file = Path(folder) / "backend.pem"
        file.write_bytes(loopback_pem())
        with test_bed(tools, cores, effort, way=Way(file)) as bed:
            yield from rows(bed)


def rows(bed: Bed) -> Iterator[Figure]:
    """The rows of one way to the nodes."""
    for figure in unlabeled_rows(bed):
        yield replace(figure, what=bed.way.label(figure.what))


def unlabeled_rows(bed: Bed) -> Iterator[Figure]:
    uvloop.run(closed(bed.port, [bed.routed(small_body())], 8, seconds=1.0))
    yield uvloop.run(added_latency(bed))
    yield uvloop.run(added_ttft(bed))
    yield from uvloop.run(added_p99(bed))
    what = "router: CPU per request, small body"
    yield cpu_per_request(bed, what, [small_body()], BAR_REQUEST_US)
    what = "router: CPU per request, 32 KB body"
    yield cpu_per_request(bed, what, large_bodies(), BAR_LARGE_REQUEST_US)
    yield cpu_per_chunk(bed, bed.backends, MODEL, "burst, unpaced", BAR_BURST_CHUNK_US)
    with fake_backends(bed.tools, bed.cores, PACED_MODEL, 10, bed.way) as paced:
        bed.add(paced)
        pace = "a chunk each 10 ms"
        yield cpu_per_chunk(bed, paced, PACED_MODEL, pace, BAR_PACED_CHUNK_US)
    yield Figure("router: memory after that", processes.rss_bytes(bed.router) / 2**20, "MiB")
    with fake_backends(bed.tools, bed.cores, SLOW_MODEL, 2000, bed.way) as slow:
        bed.add(slow)
        yield uvloop.run(memory_of_streams(bed))


# --- what runs ---


@contextmanager
def test_bed(
    tools: SharedTools,
    cores: Cores,
    effort: Effort,
    entry: Sequence[str] = (),
    way: Way = PLAIN,
) -> Iterator[Bed]:
    """A router, started by `router serve` or by another `entry`, and two backends."""
    with ExitStack() as stack:
        backends = stack.enter_context(fake_backends(tools, cores, MODEL, 0, way))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-router-")))
        port = processes.free_port()
        log = CACHE / "logs" / "router.log"
        argv = entry or (*processes.command("router"), "serve")
        environ = {"MLX_FLEET_HOME": str(home), "MLX_FLEET_ROUTER_PORT": str(port)}
        if way.certificate is not None:
            environ["SSL_CERT_FILE"] = str(way.certificate)
        router = stack.enter_context(processes.running(argv, cores, log, environ))
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(processes.answers(url + "/health"), router, log)
        key, admin_key = (
            (home / "router" / name).read_text().strip() for name in ("first.key", "admin.key")
        )
        bed = Bed(tools, cores, router, port, key, admin_key, backends, effort, way)
        bed.add(backends)
        yield bed


@contextmanager
def fake_backends(
    tools: SharedTools, cores: Cores, model: str, interval_ms: int, way: Way = PLAIN
) -> Iterator[Backends]:
    """Two fake backends that stream `max_tokens` chunks."""
    with ExitStack() as stack:
        ports = (processes.free_port(), processes.free_port())
        running, urls = [], []
        for port in ports:
            log = CACHE / "logs" / f"fake-{model}-{port}.log"
            argv, url = [sys.executable], f"http://127.0.0.1:{port}"
            if way.certificate is not None:
                tls_port = processes.free_port()
                url = f"https://127.0.0.1:{tls_port}"
                argv += ["-m", "tests.bench.tls_backend"]
            argv.append(str(tools.script("fake_backend.py")))
            if way.certificate is not None:
                argv += [str(way.certificate), str(tls_port)]
            urls.append(url)
            argv += ["--port", str(port), "--id", f"b{port}", "--model", model]
            argv += ["--interval-ms", str(interval_ms), "--honor-max-tokens"]
            backend = stack.enter_context(processes.running(argv, cores, log))
            processes.wait_until(processes.answers(f"http://127.0.0.1:{port}/health"), backend, log)
            running.append(backend)
        yield Backends(ports, tuple(running), tuple(urls))


# --- bodies ---


def chat_body(
    messages: list[dict[str, str]], *, stream: bool, max_tokens: int, model: str = MODEL
) -> bytes:
    body = {
        "model": model,
        "stream": stream,
        "max_tokens": max_tokens,
        "temperature": 0,
        "messages": messages,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def small_body(*, stream: bool = False) -> bytes:
    text = "hello world, this is a small request body"
    return chat_body(
        [{"role": "user", "content": text}], stream=stream, max_tokens=4 if stream else 1
    )


def large_bodies() -> list[bytes]:
    """Conversations of 32 KB with one system prompt in common."""
    chance = random.Random(7)

    def words(size: int) -> str:
        text = " ".join(f"word{chance.randrange(10_000)}" for _ in range(size // 8))
        return text[:size]

    system = words(LARGE_BODY_BYTES // 4)
    turn = LARGE_BODY_BYTES // 22
    bodies = []
    for number in range(LARGE_BODIES):
        messages = [{"role": "system", "content": system}]
        for _ in range(8):
            messages.append({"role": "user", "content": f"s{number} {words(turn)}"})
            messages.append({"role": "assistant", "content": words(turn)})
        messages.append({"role": "user", "content": "go on"})
        bodies.append(chat_body(messages, stream=False, max_tokens=1))
    return bodies


# --- rows ---


async def closed(
    port: int, requests: Sequence[bytes], connections: int, *, seconds: float
) -> Tally:
    client = await Client.open(port, connections)
    try:
        return checked(await client.closed_loop(requests, seconds=seconds))
    finally:
        client.close()


def checked(tally: Tally) -> Tally:
    if tally.failed or not tally.seconds:
        done = len(tally.seconds)
        raise processes.BenchFailure(f"{tally.failed} requests failed, {done} were answered.")
    return tally


async def alternating(bed: Bed, body: bytes, times: Callable[[Tally], list[float]]) -> Figure:
    """Blocks of direct and of routed calls in turn, on one connection each, and the median of the
    differences between the medians of neighboring blocks."""
    direct = await Client.open(bed.backends.ports[0], 1)
    routed = await Client.open(bed.port, 1)
    plain: list[float] = []
    added: list[float] = []
    try:
        for block in range(bed.effort.blocks + 1):
            count = bed.effort.block_requests
            without = checked(await direct.closed_loop([bed.direct(body)], count=count))
            through = checked(await routed.closed_loop([bed.routed(body)], count=count))
            if block:
                plain.append(median(times(without)) * 1e3)
                added.append(median(times(through)) * 1e3 - plain[-1])
    finally:
        direct.close()
        routed.close()
    note = (
        f"1 connection, {bed.effort.blocks} alternating blocks of {bed.effort.block_requests}; "
        f"direct {median(plain):.3f} ms"
    )
    return Figure("", median(added), "ms", note=note, samples=tuple(added))


async def added_latency(bed: Bed) -> Figure:
    found = await alternating(bed, small_body(), lambda tally: tally.seconds)
    return Figure("router: added latency p50", found.value, "ms", BAR_ADDED_MS, False, found.note)


async def added_ttft(bed: Bed) -> Figure:
    found = await alternating(bed, small_body(stream=True), lambda tally: tally.first_seconds)
    return Figure(
        "router: added TTFT p50, streamed", found.value, "ms", BAR_ADDED_TTFT_MS, False, found.note
    )


async def added_p99(bed: Bed) -> list[Figure]:
    """Open loop, direct and routed in turn."""
    body = small_body()
    direct: list[float] = []
    routed: list[float] = []
    for _ in range(2):
        targets = (
            (bed.backends.ports[0], bed.direct(body), direct),
            (bed.port, bed.routed(body), routed),
        )
        for port, request, times in targets:
            client = await Client.open(port, RATE_CONNECTIONS)
            try:
                tally = checked(await client.open_loop(request, RATE, bed.effort.seconds))
            finally:
                client.close()
            times += [seconds * 1e3 for seconds in tally.seconds]
    p99, base = percentile(routed, 99), percentile(direct, 99)
    note = (
        f"open loop, {RATE:g} requests/s, {RATE_CONNECTIONS} connections, {len(routed)} requests; "
        f"direct p99 {base:.2f} ms, through the router p50 {median(routed):.2f} ms"
    )
    return [
        Figure("router: added latency p99", p99 - base, "ms", BAR_ADDED_P99_MS, note=note),
        Figure("router: total latency p99", p99, "ms", note="the same requests"),
    ]


class CpuMeter:
    """Processor seconds, since it was made, of the router and of its backends."""

    def __init__(self, bed: Bed, backends: Backends) -> None:
        self._sides = ((bed.router,), backends.processes)
        self._start = self._read()

    def _read(self) -> tuple[float, ...]:
        return tuple(sum(map(processes.cpu_s, side)) for side in self._sides)

    def since(self) -> tuple[float, float]:
        router_s, backends_s = (
            now - start for now, start in zip(self._read(), self._start, strict=True)
        )
        return router_s, backends_s


def cpu_per_request(bed: Bed, what: str, bodies: Sequence[bytes], bar: float) -> Figure:
    requests = [bed.routed(body) for body in bodies]
    meter = CpuMeter(bed, bed.backends)
    tally = uvloop.run(closed(bed.port, requests, CONNECTIONS, seconds=bed.effort.seconds))
    router_s, backends_s = meter.since()
    count = len(tally.seconds)
    note = (
        f"{CONNECTIONS} connections, {count} requests, {count / bed.effort.seconds:.0f} "
        f"requests/s; the fake backends took {backends_s / count * 1e6:.0f} us a request"
    )
    return Figure(what, router_s / count * 1e6, "us", bar, note=note)


def yardstick(bed: Bed) -> Figure:
    """Measures the CPU of a fake backend itself per request: the speed of this machine now."""
    backend = bed.backends.processes[0]
    before_s = processes.cpu_s(backend)
    load = closed(bed.backends.ports[0], [bed.direct(small_body())], CONNECTIONS, seconds=2.0)
    count = len(uvloop.run(load).seconds)
    spent_s = processes.cpu_s(backend) - before_s
    took_us = spent_s / count * 1e6
    note = (
        f"no router, {CONNECTIONS} connections, {count} requests; {YARDSTICK_US:g} us where the "
        f"bars were set, so CPU counts {took_us / YARDSTICK_US:.1f} times here"
    )
    return Figure("yardstick: fake backend, CPU per request", took_us, "us", note=note)


def cpu_per_chunk(bed: Bed, backends: Backends, model: str, pace: str, bar: float) -> Figure:
    """CPU of the router per chunk of content, each stream's request included."""
    argv = ["--url", f"http://127.0.0.1:{bed.port}", "--api-key", bed.key, "--model", model]
    argv += ["-c", str(CONNECTIONS), "-n", str(bed.effort.streams), "--light"]
    argv += ["--max-tokens", str(STREAM_CHUNKS)]
    loadgen = bed.tools.loadgen()
    meter = CpuMeter(bed, backends)
    summary: dict[str, Any] = loadgen.run(argv)
    router_s, backends_s = meter.since()
    if summary["errors"]:
        raise processes.BenchFailure(f"Streams failed: {summary['error_samples']}")
    chunks = summary["ok"] * STREAM_CHUNKS
    note = (
        f"{CONNECTIONS} connections, {summary['ok']} streams of {STREAM_CHUNKS} chunks, "
        f"{chunks / summary['wall_s']:.0f} chunks/s; the fake backends took "
        f"{backends_s / chunks * 1e6:.1f} us a chunk"
    )
    return Figure(f"router: CPU per chunk, {pace}", router_s / chunks * 1e6, "us", bar, note=note)


async def memory_of_streams(bed: Bed) -> Figure:
    """Memory of the router while many streams are open, each after its first content."""
    messages = [{"role": "user", "content": "go on"}]
    body = chat_body(messages, stream=True, max_tokens=1000, model=SLOW_MODEL)
    before_bytes = processes.rss_bytes(bed.router)
    client = await Client.open(bed.port, OPEN_STREAMS)
    try:
        async with asyncio.timeout(OPEN_STREAMS_S):
            await client.begin(bed.routed(body))
        open_bytes = processes.rss_bytes(bed.router)
    except TimeoutError as error:
        raise processes.BenchFailure(f"{OPEN_STREAMS} streams do not begin.") from error
    finally:
        client.close()
    note = f"{before_bytes / 2**20:.0f} MiB before them"
    what = f"router: memory with {OPEN_STREAMS} open streams"
    return Figure(what, open_bytes / 2**20, "MiB", BAR_STREAMS_MIB, note=note)
