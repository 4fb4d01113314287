"""The sockets that a server listens on."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from serving.errors import CannotStart
from serving.own_machine import is_loopback, url_at

BACKLOG = 2048
"""macOS limits it to `sysctl kern.ipc.somaxconn`, 128 by default."""
_CONNECT_S = 0.5
_TRIES = 10
"""Attempts to find one port that is free on several addresses."""
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

_Place = tuple[int, tuple[Any, ...]]
"""Family and address."""


class CannotListen(CannotStart):
    """The server cannot listen there."""


class PortInUse(CannotListen):
    """Another server listens there."""


def refuse_open_bind(host: str, *, allow_plain_http: bool) -> None:
    """Raises `CannotListen` for an address that others can reach over plain HTTP, unless that is
    allowed."""
    if not allow_plain_http and not is_loopback(host):
        raise CannotListen(
            f"{host} is not a loopback address, and plain HTTP would show keys, tokens and prompts "
            "to the network; bind 127.0.0.1, or add --allow-plain-http in a network that you trust."
        )


@contextlib.contextmanager
def listening(host: str, port: int, hint: str = "") -> Iterator[list[socket.socket]]:
    """Listens on every address of the host, all on one port, IPv4 first; port 0 selects a free one.
    `::` means all addresses of the machine, `0.0.0.0` all of IPv4. Raises `CannotListen`; a hint is
    appended to its message if the port is in use."""
    try:
        listeners = _listen_at_all(host, port)
    except PortInUse as error:
        raise PortInUse(f"{error} {hint}".rstrip()) from error
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def url_of(host: str, listeners: Sequence[socket.socket], *, tls: bool = False) -> str:
    return url_at(host, listeners[0].getsockname()[1], tls=tls)


def is_unspecified(host: str) -> bool:
    """True if the host means all addresses of the machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _places(host: str, port: int) -> list[_Place]:
    # `::` alone would also accept IPv4 clients, with addresses like ::ffff:192.168.1.7, which are
    # not recognized as loopback and are unfamiliar in logs: each family has a socket of its own.
    names = [host]
    if is_unspecified(host) and ":" in host:
        names = ["0.0.0.0", host]
    try:
        found = [
            (family, address)
            for name in names
            for family, _, _, _, address in socket.getaddrinfo(
                name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        ]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name"
        raise CannotListen(f"There is no address {host!r} ({reason}).") from error
    return sorted(dict.fromkeys(found), key=lambda place: place[0] != socket.AF_INET)


def _listen_at_all(host: str, port: int) -> list[socket.socket]:
    places = _places(host, port)
    if port:
        for family, address in places:
            if _accepts_connections(family, address):
                raise _in_use(host, port)
    return _listen(host, port, places)


def _listen(host: str, port: int, places: list[_Place]) -> list[socket.socket]:
    for attempt in range(_TRIES):
        try:
            return _listen_once(host, port, places)
        except PortInUse:
            # The port was free on the first address, but not on another.
            if port or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _listen_once(host: str, port: int, places: list[_Place]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in places:
            taken = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_listener(family, (address[0], taken, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if not listeners and absent is not None:
            raise absent
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise _cannot(host, port, error) from error
    return listeners


def _listener(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for the connections of the last run to time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _accepts_connections(family: int, address: tuple[Any, ...]) -> bool:
    """True if something accepts connections there. With BSD's SO_REUSEADDR, as on macOS, a bind to
    all addresses succeeds beside a socket that listens on one of them, and vice versa; clients then
    reach either of them."""
    host = address[0]
    if is_unspecified(host):
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(_CONNECT_S)
        try:
            caller.connect((host, *address[1:]))
        except OSError:
            return False
        # A free port may have been assigned to this very connection, which is then connected to
        # itself.
        return bool(caller.getsockname() != caller.getpeername())


def _cannot(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return _in_use(host, port)
    if isinstance(error, PermissionError):
        return CannotListen(
            f"Port {port} of {host} is not allowed for this user; choose one above 1023."
        )
    return CannotListen(f"{host}, port {port}, cannot be listened on: {error.strerror or error}.")


def _in_use(host: str, port: int) -> PortInUse:
    return PortInUse(
        f"Port {port} of {host} is in use; stop what uses it, or choose another with --port."
    )
