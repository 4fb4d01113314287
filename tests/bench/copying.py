"""Measures a copy of a model from one node to another, beside a plain copy with hashing."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from node.errors import PullRunning
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.lifecycle import PATH_PULL, PATH_REMOVE, PATH_SHARE, Peer, PullCommand, Share
from node.protocol.messages import PATH_STATUS, PROTOCOL_VERSION, ModelState, decode_status
from tests.bench import processes
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE

MODEL = "bench"
PIECE_BYTES = 4 << 20
QUICK_BYTES, WHOLE_BYTES = 512 << 20, 1536 << 20
ROUNDS = 3
BAR = 0.7
POLL_S = 0.02
TIMEOUT_S = 300.0
ENDS_S = 5.0
"""Most seconds that the process of a pull may take to end."""


@dataclass(frozen=True, slots=True)
class Node:
    """An agent and the folder of its models."""

    url: str
    http: httpx.Client
    models: Path

    def state(self) -> ModelState | None:
        """Returns the state of the agent's only model."""
        models = decode_status(self.http.get(PATH_STATUS).content).models
        if models and models[0].reason:
            raise BenchFailure(f"The copy failed: {models[0].reason}")
        return models[0].state if models else None

    def post(self, path: str, command: object) -> bytes:
        answer = self.http.post(path, content=msgspec.json.encode(command))
        if not answer.is_success:
            raise BenchFailure(f"{path} was refused: {answer.text}")
        return answer.content

    def remove(self) -> None:
        """Deletes the model. Its pull may end a moment after the model is there."""
        body, began_s = msgspec.json.encode({"model": MODEL}), time.perf_counter()
        while not (answer := self.http.post(PATH_REMOVE, content=body)).is_success:
            if answer.status_code != PullRunning.status or time.perf_counter() - began_s > ENDS_S:
                raise BenchFailure(f"{MODEL} cannot be removed: {answer.text}")
            time.sleep(POLL_S)


def measure(cores: Cores, *, quick: bool) -> Iterator[Figure]:
    size_bytes = QUICK_BYTES if quick else WHOLE_BYTES
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as home, ExitStack() as stack:
        source, target = (
            stack.enter_context(_agent(Path(home) / name, cores)) for name in ("a", "b")
        )
        weights = _make_model(source.models / MODEL, size_bytes)
        began_s = time.perf_counter()
        source.post(PATH_SHARE, {"model": MODEL})
        share_s = time.perf_counter() - began_s
        plain_s, copy_s = [], []
        for _ in range(1 if quick else ROUNDS):
            plain_s.append(_plain_copy(weights, Path(home) / "plain"))
            copy_s.append(_peer_copy(source, target))
            target.remove()
    speed = size_bytes / 1e6
    yield Figure("plain copy with SHA-256", speed / median(plain_s), "MB/s")
    yield Figure(
        "peer copy over loopback",
        speed / median(copy_s),
        "MB/s",
        note="from the order to the model on disk, the start of its process included",
    )
    yield Figure(
        "peer copy, of the plain copy's speed",
        median([plain / copy for plain, copy in zip(plain_s, copy_s, strict=True)]),
        "",
        BAR,
        at_least=True,
        note=f"{size_bytes / 1e9:.1f} GB in one file, in turns",
    )
    yield Figure("hashes of a model, at its first copy", speed / share_s, "MB/s")


def _make_model(folder: Path, size_bytes: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    weights = folder / "model.safetensors"
    tensors = {"w": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}
    head = json.dumps(tensors).encode()
    with weights.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for _ in range(size_bytes // PIECE_BYTES):
            out.write(os.urandom(PIECE_BYTES))
    return weights


def _plain_copy(source: Path, target: Path) -> float:
    """Seconds of reading, hashing and writing the file."""
    os.sync()  # what was written before shall not be written back meanwhile
    began_s = time.perf_counter()
    digest, buffer = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
    with source.open("rb", buffering=0) as given, target.open("wb", buffering=0) as taken:
        while count := given.readinto(buffer):
            digest.update(buffer[:count])
            taken.write(buffer[:count])
    took_s = time.perf_counter() - began_s
    target.unlink()
    return took_s


def _peer_copy(source: Node, target: Node) -> float:
    """Seconds from the order to the model that is there."""
    share = msgspec.json.decode(source.post(PATH_SHARE, {"model": MODEL}), type=Share)
    os.sync()
    began_s = time.perf_counter()
    target.post(PATH_PULL, PullCommand(MODEL, peer=Peer(source.url, share)))
    while target.state() is not ModelState.ON_DISK:
        if time.perf_counter() - began_s > TIMEOUT_S:
            raise BenchFailure("The copy did not end.")
        time.sleep(POLL_S)
    return time.perf_counter() - began_s


@contextmanager
def _agent(home: Path, cores: Cores) -> Iterator[Node]:
    port, log = processes.free_port(), home / "agent.log"
    argv = [*processes.command("node-agent"), "serve", "--home", str(home), "--port", str(port)]
    with processes.running(argv, cores, log) as process:
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(processes.answers(f"{url}/health"), process, log)
        token = (home / "token").read_text().strip()
        headers = {
            "authorization": f"Bearer {token}",
            HEADER_PROTOCOL: str(PROTOCOL_VERSION),
        }
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
            yield Node(url, http, home / "models")
