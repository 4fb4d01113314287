"""Pulls through the hub's own library, from a hub that a test plays."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from node.models.model_files import read_source
from node.protocol.lifecycle import PullCommand
from tests.node.model_folders import CONFIG, safetensors
from tests.node.models.test_pulls import World

COMMIT = "c0ffee" + "0" * 34
WEIGHTS = safetensors(bytes(range(256)) * 60_000)
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "evil.py": b"raise SystemExit"}
STALL_AT = 12_000_000
WAIT_S = 20.0


@dataclass
class PlayedHub:
    """One repository, org/tiny."""

    stalls: threading.Event | None = None
    """The weights stop in the middle until this is set, and are then cut off."""
    downloaded: list[tuple[str, str]] = field(default_factory=list)
    """File and range, of what was downloaded."""
    tokens: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)
    """Requests for anything else."""

    def go_on(self) -> None:
        """Nothing stalls any more, and what was downloaded is forgotten."""
        if self.stalls is not None:
            self.stalls.set()
        self.stalls = None
        self.downloaded.clear()
        self.tokens.clear()


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does."""

    protocol_version = "HTTP/1.1"
    hub: PlayedHub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "/org/tiny" in path:
            self.hub.tokens.add(self.headers.get("authorization", ""))
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            body = {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT}
            self._send(json.dumps({**body, "siblings": siblings, "tags": []}).encode())
        elif name in FILES:
            self._file(name)
        else:
            self.hub.others.append(self.path)
            self._send(b"{}", 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass

    def _file(self, name: str) -> None:
        data, given = FILES[name], self.headers.get("range", "")
        begin = int(given[6:].partition("-")[0]) if given else 0
        headers = {
            "etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "x-repo-commit": COMMIT,
            "accept-ranges": "bytes",
        }
        if given:
            headers["content-range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if self.command == "GET":
            self.hub.downloaded.append((name, given))
            if self.hub.stalls is not None and name == "model.safetensors":
                self._stall(data, headers, self.hub.stalls)
                return
        self._send(data[begin:], 206 if given else 200, headers)

    def _stall(self, data: bytes, headers: dict[str, str], end: threading.Event) -> None:
        self._send(data, 200, headers, STALL_AT)
        end.wait(WAIT_S)
        self.close_connection = True

    def _send(
        self,
        body: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:most_bytes])


@contextmanager
def playing(hub: PlayedHub) -> Iterator[str]:
    """The hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        if hub.stalls is not None:
            hub.stalls.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_pull_killed_in_the_middle_is_resumed_by_itself_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, hub = tmp_path / "models", PlayedHub(stalls=threading.Event())
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with playing(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        world = World(models)
        world.pulls.begin(PullCommand("tiny", "org/tiny", token="hf_secret"))
        weights, config = (models / "tiny" / name for name in ("model.safetensors", "config.json"))
        async with asyncio.timeout(WAIT_S):
            # Files are downloaded side by side: one is whole, and one is not.
            while here_bytes(config) < len(FILES["config.json"]) or here_bytes(weights) == 0:
                await asyncio.sleep(0.01)
        # SIGKILL to the process that pulls.
        await world.pulls.close()
        here = weights.stat().st_size
        assert world.store.list() == ()
        assert hub.tokens == {"Bearer hf_secret"}
        assert not [file for file in files_of(tmp_path) if b"hf_secret" in file.read_bytes()]
        hub.go_on()
        again = World(models)
        await again.pulls.start()
        assert again.pulls.is_running("tiny")
        assert await again.until_still() == ()
        await again.pulls.close()
    # The hub learns nothing but what is pulled.
    assert hub.others == []
    # Nothing that has arrived is requested again.
    assert hub.downloaded == [("model.safetensors", f"bytes={here}-")]
    assert hub.tokens == {""}
    entry = again.store.find("tiny")
    assert entry is not None and read_source(entry.folder) == f"hub:org/tiny@{COMMIT}"
    assert weights.read_bytes() == WEIGHTS
    names = sorted(file.name for file in files_of(entry.folder))
    assert names == ["config.json", "mlx-fleet.json", "model.safetensors"]


def here_bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
