"""Wakes a machine in the local network: a magic packet in a datagram to everybody."""

import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

PORT = 9
EVERYBODY = "255.255.255.255"
SEND_S = 1.0
_MAC = re.compile(r"[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}|[0-9a-f]{12}")


def read_mac(text: str) -> str | None:
    """A MAC address as a0:b1:c2:d3:e4:f5; None for another text."""
    given = text.strip().lower()
    if not _MAC.fullmatch(given):
        return None
    digits = re.sub("[:-]", "", given)
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


def magic_packet(mac: str) -> bytes:
    """The packet that wakes the machine with this address: six bytes of ones, and the address
    sixteen times."""
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16


def targets(url: str) -> tuple[str, ...]:
    """The addresses to send to: everybody in the local network and, for a node whose URL has an
    IPv4 address, that one and everybody in its network of 256."""
    host = urlsplit(url).hostname or ""
    parts = host.split(".")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):
        return (EVERYBODY,)
    return (EVERYBODY, ".".join([*parts[:3], "255"]), host)


def send(macs: Iterable[str], addresses: Iterable[str], port: int = PORT) -> None:
    """Sends a packet for each MAC address to each address. Raises `OSError` if none could be
    sent."""
    packets = [magic_packet(mac) for mac in macs]
    sent, failure = False, OSError("there is nothing to send")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        out.settimeout(SEND_S)
        for address in addresses:
            for packet in packets:
                try:
                    out.sendto(packet, (address, port))
                    sent = True
                except OSError as error:
                    failure = error
    if not sent:
        raise failure
