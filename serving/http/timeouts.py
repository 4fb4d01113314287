"""Timeouts of a client's connection."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from dataclasses import dataclass

from serving.http.tcp_keepalive import Probes

_SO_NWRITE = 0x1024
"""The option of macOS, which Python does not name."""
_INT_BYTES = 4
_BODY_BYTES_PER_S = 16 * 1024
"""Rate of the slowest client."""


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Timeouts for clients that are connected but make no progress, in seconds."""

    head_s: float = 30.0
    """From the first byte of a request's head to its last."""
    body_s: float = 60.0
    """For a body, in addition to the time that the slowest client needs for the bytes received."""
    unread_s: float = 120.0
    """For a response that waits while none of its bytes is accepted."""


DEFAULT_TIMEOUTS = ClientTimeouts()
PROBES = Probes(idle_s=60, each_s=20, count=3, unread_s=DEFAULT_TIMEOUTS.unread_s)
"""Keepalive probes of clients' connections."""


class ClientProgress:
    """Progress of one client. It is checked by a timer of the connection, so that no request needs
    one."""

    def __init__(self, timeouts: ClientTimeouts, keep_alive_s: float, now_s: float) -> None:
        self.check_each_s = (
            min(keep_alive_s, timeouts.head_s, timeouts.body_s, timeouts.unread_s) / 2
        )
        self.idle_since_s = now_s
        self.request_since_s = now_s
        """Time when the newest request began to arrive."""
        self.body_bytes = 0
        """Received bytes of its body."""
        self.accepted_s = now_s
        """Time of the last check at which the client had accepted bytes that waited for it."""
        self._timeouts = timeouts
        self._keep_alive_s = keep_alive_s
        self._waiting_bytes = 0

    def begin(self, now_s: float) -> None:
        """A request begins to arrive."""
        self.request_since_s = now_s
        self.body_bytes = 0

    def is_stalled(self, now_s: float, waiting_bytes: int, *, is_full: bool) -> bool:
        """True if so many bytes have waited for the client too long. `is_full`: nothing is
        added."""
        if not is_full or waiting_bytes < self._waiting_bytes:
            self.accepted_s = now_s
        self._waiting_bytes = waiting_bytes
        return now_s - self.accepted_s > self._timeouts.unread_s

    def is_idle(self, now_s: float) -> bool:
        return now_s - self.idle_since_s > self._keep_alive_s

    def head_is_late(self, now_s: float) -> bool:
        return now_s - self.request_since_s > self._timeouts.head_s

    def body_is_late(self, now_s: float) -> bool:
        limit_s = self._timeouts.body_s + self.body_bytes / _BODY_BYTES_PER_S
        return now_s - self.request_since_s > limit_s


def unsent_bytes(connection: socket.socket) -> int:
    """Bytes sent to the client that the system still buffers. It requests more only once much of
    them is gone."""
    try:
        if sys.platform == "darwin":
            return connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
        return int.from_bytes(
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT_BYTES)), sys.byteorder
        )
    except OSError:  # the connection has ended, which is reported next
        return 0
