"""Makes the system detect that the machine at the other end of a connection is gone."""

import contextlib
import math
import socket
import sys
from dataclasses import dataclass

_TCP_RXT_CONNDROPTIME = 0x80
"""The option of macOS, which Python does not name: seconds for which unacknowledged bytes are sent
again."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Times of the keepalive probes of a silent connection."""

    idle_s: int
    each_s: int
    count: int
    unread_s: float = 0.0
    """Seconds that our bytes may stay unacknowledged, if the system can limit it: no probe is sent
    while they are in transit. 0: the system's default."""


def probe(connection: socket.socket, probes: Probes, platform: str = sys.platform) -> None:
    """Makes the system end the connection once its other end does not respond any more."""
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
    # macOS rejects options of a connection that has ended already; its end is reported next.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for number, value in numbers.items():
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
