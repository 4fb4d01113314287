"""Relays bytes between a client and the router, and records requests and answers."""

import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"(GET|POST|HEAD|DELETE) (/[^ ]*) HTTP/1\.1\r\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
Note = Callable[[bytes, bytes], None]
_KEPT_BYTES = 4096
"""Bytes that are kept of those before, for a line that arrives in two pieces."""


@dataclass
class Wire:
    """Listens on loopback; every connection has one of its own to the router."""

    upstream: tuple[str, int]
    requests: list[tuple[float, str]] = field(default_factory=list)
    """Monotonic time, and method and path."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the answers, in their order."""
    sent: bytearray = field(default_factory=bytearray)
    """All that the client has sent."""
    _listener: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def posts(self) -> list[float]:
        """When each inference request arrived."""
        return [at_s for at_s, line in self.requests if line.startswith("POST /v1/")]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.upstream)
            for source, target, note in (
                (client, server, self._note_sent),
                (server, client, self._note_answer),
            ):
                threading.Thread(target=_pump, args=(source, target, note), daemon=True).start()

    def _note_sent(self, before: bytes, data: bytes) -> None:
        self.sent += data
        for found in _ended(_REQUEST, before, data):
            line = f"{found[1].decode()} {found[2].decode()}"
            self.requests.append((time.monotonic(), line))

    def _note_answer(self, before: bytes, data: bytes) -> None:
        for found in _ended(_STATUS, before, data):
            if found[1] != b"100":
                self.statuses.append(int(found[1]))


def _ended(line: re.Pattern[bytes], before: bytes, data: bytes) -> list[re.Match[bytes]]:
    """Lines that end within the new data."""
    whole = before + data
    return [found for found in line.finditer(whole) if found.end() > len(before)]


def _pump(source: socket.socket, target: socket.socket, note: Note) -> None:
    before = b""
    try:
        while data := source.recv(1 << 16):
            note(before, data)
            before = (before + data)[-_KEPT_BYTES:]
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()
