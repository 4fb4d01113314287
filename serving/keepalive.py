"""Has the system find out that the machine at the other end of a connection is gone."""

import contextlib
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probes:
    """When a silent connection is asked whether it is there still, and how often."""

    idle_s: int
    each_s: int
    count: int
    unread_s: float = 0.0
    """How long bytes of ours may stay unread, where the system can limit it: no probe is sent while
    they are on their way. 0: as long as it pleases the system."""


def probe(connection: socket.socket, probes: Probes) -> None:
    """Has the system end the connection once its other end does not answer any more."""
    options = {
        "TCP_KEEPIDLE": probes.idle_s,
        "TCP_KEEPALIVE": probes.idle_s,  # the same on macOS
        "TCP_KEEPINTVL": probes.each_s,
        "TCP_KEEPCNT": probes.count,
    }
    if probes.unread_s:
        options["TCP_USER_TIMEOUT"] = round(probes.unread_s * 1000)
    # macOS takes no option for a connection that has ended already; its end is told next.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
