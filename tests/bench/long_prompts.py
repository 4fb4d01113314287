"""Prompts that cannot fit: what their refusal takes, and what others wait beside many of them."""

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from node.protocol.headers import HEADER_ORIGIN
from tests.bench import processes, sides
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores
from tests.bench.processes import BenchFailure
from tests.bench.shared import SharedTools, smollm2_folder

LENGTH = 6 << 20
OTHERS_LENGTH = 40_000
AT_ONCE = 64
REFUSED_MS = 100.0
TAKEN_MB = 100.0
BESIDE_S = 1.0
_CHAT, _COUNT = "/v1/chat/completions", "/v1/messages/count_tokens"
_ROUNDS, _QUICK_ROUNDS = 10, 4
_LOOK_S = 0.005
_LIMIT_S = 120.0
_WORDS = ("return", "value", "the", "path", "def", "self", "weather", "Paris", "because", "0.25\n")


@dataclass(frozen=True, slots=True)
class Caller:
    """One key of a router."""

    server: sides.Server
    name: str

    def post(self, path: str, body: bytes) -> tuple[float, int, bytes]:
        """Seconds until the answer is there, its status, its body."""
        host = self.server.url.removeprefix("http://")
        headers = {
            "authorization": f"Bearer {self.server.token}",
            "content-type": "application/json",
            HEADER_ORIGIN: f"bench/{self.name}",
        }
        connection = http.client.HTTPConnection(host, timeout=_LIMIT_S)
        try:
            began_s = time.perf_counter()
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            response = answer.read()
            return time.perf_counter() - began_s, answer.status, response
        finally:
            connection.close()

    def refused_s(self, body: bytes) -> float:
        """Seconds until a chat that cannot fit is refused."""
        took_s, status, response = self.post(_CHAT, body)
        if status != 400 or b'"context_length_exceeded"' not in response:
            raise BenchFailure(f"HTTP {status}: {response[:300]!r}")
        return took_s

    def counted_s(self, body: bytes) -> float:
        """Seconds until the tokens of a prompt are counted."""
        took_s, status, response = self.post(_COUNT, body)
        if status != 200 or json.loads(response)["input_tokens"] < OTHERS_LENGTH // 10:
            raise BenchFailure(f"HTTP {status}: {response[:300]!r}")
        return took_s


def measure(tools: SharedTools, cores: Cores, *, quick: bool) -> Iterator[Figure]:
    folder = smollm2_folder()
    if folder is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    with sides.agent(tools, cores, folder, {"HF_HUB_OFFLINE": "1"}) as server:
        # Loads the model, and all that makes prompts.
        server.ask([{"role": "user", "content": "Hello"}], 1)
        large, small = Bodies(server.model, LENGTH), Bodies(server.model, OTHERS_LENGTH)
        many, other = Caller(server, "many"), Caller(server, "other")
        quiet_s = [other.counted_s(small.next()) for _ in range(rounds)]
        yield from _refusals(many, large, rounds)
        yield _beside(many, large, other, small, median(quiet_s))


def _refusals(many: Caller, large: "Bodies", rounds: int) -> Iterator[Figure]:
    bodies = [large.next() for _ in range(rounds)]
    with _taken(many.server.process) as taken:
        took_ms = [many.refused_s(body) * 1e3 for body in bodies]
    what, note = "prompt of 6 MiB that cannot fit", f"of a chat; worst {max(took_ms):.0f} ms"
    yield Figure(f"{what}, refused", median(took_ms), "ms", REFUSED_MS, note=note)
    note = f"the most, over {rounds} of them"
    yield Figure(f"{what}, memory", taken.most_bytes / 1e6, "MB", TAKEN_MB, note=note)


def _beside(
    many: Caller, large: "Bodies", other: Caller, small: "Bodies", quiet_s: float
) -> Figure:
    bodies = [large.next() for _ in range(AT_ONCE)]
    beside_s: list[float] = []
    with _taken(many.server.process) as taken, ThreadPoolExecutor(AT_ONCE) as threads:
        futures: list[Future[float]] = [threads.submit(many.refused_s, body) for body in bodies]
        while not all(each.done() for each in futures):
            beside_s.append(other.counted_s(small.next()))
        whole_s = max(each.result() for each in futures)
    note = (
        f"{len(beside_s)} counts of tokens one after the other, median {median(beside_s):.2f} s, "
        f"alone {quiet_s:.2f} s; the {AT_ONCE} took {whole_s:.1f} s and "
        f"{taken.most_bytes / 1e6:.0f} MB"
    )
    what = f"40 KB of another key beside {AT_ONCE} of them, slowest"
    return Figure(what, max(beside_s), "s", BESIDE_S, note=note, samples=tuple(beside_s))


class Bodies:
    """Chats of one length, none of which begins like another."""

    def __init__(self, model: str, length: int) -> None:
        words = random.Random(3).choices(_WORDS, k=OTHERS_LENGTH // 5)
        page = " ".join(words)
        text = (page * (length // len(page) + 1))[:length]
        body = {"model": model, "messages": [{"role": "user", "content": f"NUMBER {text}"}]}
        self._begin, _, self._rest = json.dumps(body).partition("NUMBER")
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        return f"{self._begin}{self._number:08d}{self._rest}".encode()


class _Memory:
    most_bytes = 0


@contextmanager
def _taken(process: psutil.Process) -> Iterator[_Memory]:
    """Measures the most memory that the process and its children have gained since the begin."""
    before_bytes, ended, found = processes.rss_bytes(process), threading.Event(), _Memory()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            found.most_bytes = max(found.most_bytes, processes.rss_bytes(process) - before_bytes)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
