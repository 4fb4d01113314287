"""How long a caller's connection is waited for."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from dataclasses import dataclass

from serving.http.tcp_keepalive import Probes

_SO_NWRITE = 0x1024
"""Of macOS, which Python does not name."""
_INT_BYTES = 4
_BODY_BYTES_PER_S = 16 * 1024
"""What the slowest caller sends."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What is too long, for callers that are there but do not go on."""

    head_s: float = 30.0
    """From the first byte of a request's head to its last."""
    body_s: float = 60.0
    """For a body, besides what the slowest caller takes for the bytes that came."""
    unread_s: float = 120.0
    """While an answer waits and no byte of it is taken."""


USUAL = Patience()
PROBES = Probes(idle_s=60, each_s=20, count=3, unread_s=USUAL.unread_s)
"""Of callers' connections."""


class Pace:
    """How one caller gets along. It is looked at now and then: no request needs a timer."""

    def __init__(self, patience: Patience, keep_alive_s: float, now_s: float) -> None:
        self.look_each_s = (
            min(keep_alive_s, patience.head_s, patience.body_s, patience.unread_s) / 2
        )
        self.idle_since_s = now_s
        self.request_since_s = now_s
        """When the newest request began to come."""
        self.body_bytes = 0
        """Of its body, as many as came."""
        self.taken_s = now_s
        """When the caller last took something that waited for it, as far as was looked."""
        self._patience = patience
        self._keep_alive_s = keep_alive_s
        self._waiting_bytes = 0

    def begin(self, now_s: float) -> None:
        """A request begins to come."""
        self.request_since_s = now_s
        self.body_bytes = 0

    def takes_nothing(self, now_s: float, waiting_bytes: int, *, is_full: bool) -> bool:
        """Whether so much has waited for the caller too long; `is_full`: nothing is added."""
        if not is_full or waiting_bytes < self._waiting_bytes:
            self.taken_s = now_s
        self._waiting_bytes = waiting_bytes
        return now_s - self.taken_s > self._patience.unread_s

    def is_idle(self, now_s: float) -> bool:
        return now_s - self.idle_since_s > self._keep_alive_s

    def head_is_late(self, now_s: float) -> bool:
        return now_s - self.request_since_s > self._patience.head_s

    def body_is_late(self, now_s: float) -> bool:
        limit_s = self._patience.body_s + self.body_bytes / _BODY_BYTES_PER_S
        return now_s - self.request_since_s > limit_s


def held_bytes(connection: socket.socket) -> int:
    """What the system still holds of what the caller was sent: it asks for more only once much of
    that has gone."""
    try:
        if sys.platform == "darwin":
            return connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
        return int.from_bytes(
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT_BYTES)), sys.byteorder
        )
    except OSError:  # the connection has ended: that is told next
        return 0
