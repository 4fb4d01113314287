"""The MAC addresses at which this machine can be woken."""

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from node.protocol.bounds import MAX_MACS

FRESH_S = 60.0
"""Seconds for which the addresses are used again: they change with the network only."""
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_NONE = "00:00:00:00:00:00"


class Interface(NamedTuple):
    """A network interface with its addresses, in any order and of any kind."""

    name: str
    addresses: tuple[str, ...]


def macs_of(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """The MAC addresses of interfaces that other machines reach by IPv4."""
    found = [
        mac
        for each in sorted(interfaces)
        if any(_is_reachable(address) for address in each.addresses)
        for mac in map(_normal, each.addresses)
        if _MAC.fullmatch(mac) and mac != _NONE
    ]
    return tuple(dict.fromkeys(found))[:MAX_MACS]


def _normal(address: str) -> str:
    return address.lower().replace("-", ":")


def _is_reachable(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


class OwnMacs:
    """The machine's addresses, read anew every minute."""

    def __init__(
        self,
        read: Callable[[], Iterable[Interface]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read or read_interfaces
        self._clock = clock
        self._found: tuple[str, ...] = ()
        self._until_s = -FRESH_S

    def now(self) -> tuple[str, ...]:
        if self._clock() >= self._until_s:
            self._found = macs_of(self._read())
            self._until_s = self._clock() + FRESH_S
        return self._found


def read_interfaces() -> list[Interface]:
    """The machine's interfaces; none without the node extra, which brings the library for them."""
    try:
        import psutil
    except ImportError:
        return []
    found: Mapping[str, Iterable[Any]] = psutil.net_if_addrs()
    return [
        Interface(name, tuple(str(each.address) for each in addresses))
        for name, addresses in found.items()
    ]
