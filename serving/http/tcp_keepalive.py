"""Has the system find out that the machine at the other end of a connection is gone."""

import contextlib
import math
import socket
import sys
from dataclasses import dataclass

_TCP_RXT_CONNDROPTIME = 0x80
"""Of macOS, which Python does not name: seconds for which what was sent is sent again."""


@dataclass(frozen=True, slots=True)
class Probes:
    """When a silent connection is asked whether it is there still, and how often."""

    idle_s: int
    each_s: int
    count: int
    unread_s: float = 0.0
    """How long bytes of ours may stay unread, where the system can limit it: no probe is sent while
    they are on their way. 0: as long as it pleases the system."""


def probe(connection: socket.socket, probes: Probes, platform: str = sys.platform) -> None:
    """Has the system end the connection once its other end does not answer any more."""
    options = {
        "TCP_KEEPIDLE": probes.idle_s,
        "TCP_KEEPALIVE": probes.idle_s,  # the same on macOS
        "TCP_KEEPINTVL": probes.each_s,
        "TCP_KEEPCNT": probes.count,
    }
    if probes.unread_s:
        options["TCP_USER_TIMEOUT"] = round(probes.unread_s * 1000)
    numbers = {
        getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)
    }
    if probes.unread_s and platform == "darwin":
        numbers[_TCP_RXT_CONNDROPTIME] = math.ceil(probes.unread_s)
    # macOS takes no option for a connection that has ended already; its end is told next.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for number, value in numbers.items():
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
