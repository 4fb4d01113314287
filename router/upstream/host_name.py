"""Resolves one node's host name to addresses.

An unanswered `.local` name blocks the system's lookup for five seconds, and an event loop shares a
few threads for all lookups. So each host has its own thread, one at a time, and its addresses are
cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import aiohappyeyeballs
from aiohttp.abc import AbstractResolver, ResolveResult

from router.settings import CONNECT_TIMEOUT_S

Address = tuple[int, int, int, str, tuple[Any, ...]]
"""An address as `socket.getaddrinfo` returns it."""
Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)

FRESH_S = 10.0
"""Seconds that a lookup's result is used without another lookup."""
KNOWN_WAIT_S = 0.5
"""Seconds to wait for a lookup if an earlier result exists."""
NEXT_ADDRESS_S = 0.25
"""Seconds before the next address is tried in parallel (RFC 8305)."""


def look_up(host: str, port: int, *, flags: int = 0) -> Sequence[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)


RESOLVE_S = 1.0
"""Seconds that `resolves` waits; a name of the local network that nobody answers takes longer."""


async def resolves(host: str) -> bool:
    """Returns True if the host is an address, or a name that resolves at once."""
    name = HostName(host, 0)
    try:
        async with asyncio.timeout(RESOLVE_S):
            return bool(await name.addresses())
    except OSError:  # TimeoutError is one
        return False


class HostName:
    """One host by name or address; a name's addresses survive failed lookups."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._port = port
        self._known: list[Address] = []
        self._known_s = -FRESH_S
        """Time of the last successful lookup."""
        self._lookup: asyncio.Future[list[Address]] | None = None
        """The lookup in progress."""
        with contextlib.suppress(OSError, UnicodeError):  # it is a name
            self._known = list(look_up(host, port, flags=socket.AI_NUMERICHOST))
        self.is_name = not self._known

    @property
    def known(self) -> list[str]:
        """Addresses found last."""
        return [address[4][0] for address in self._known]

    def expire(self) -> None:
        """Makes the next connection look the name up again, since the host may have moved."""
        self._known_s = -FRESH_S

    async def addresses(self) -> list[Address]:
        """Returns the addresses to try, in order. Raises `OSError` if the name has none, and
        `TimeoutError` if the lookup takes too long."""
        if not self.is_name or time.monotonic() - self._known_s < FRESH_S:
            return self._known
        lookup = self._lookup = self._lookup or self._begin()
        wait_s = KNOWN_WAIT_S if self._known else CONNECT_TIMEOUT_S
        done, _ = await asyncio.wait((lookup,), timeout=wait_s)
        if done and lookup.exception() is None:
            return lookup.result()
        if self._known:
            return self._known
        if not done:
            raise TimeoutError(f"{self.host} did not resolve within {CONNECT_TIMEOUT_S:g} s.")
        return lookup.result()

    async def connect(
        self, make: Callable[[], Protocol], tls: ssl.SSLContext | None = None
    ) -> Protocol:
        """Connects to the address that accepts first. Raises `OSError`."""
        addresses = await self.addresses()
        try:
            if len(addresses) == 1 and addresses[0][0] == socket.AF_INET:
                return await self._open(make, tls, *addresses[0][4])
            connected = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=NEXT_ADDRESS_S
            )
        except OSError:
            self.expire()
            raise
        self._worked(connected.getpeername())
        try:
            return await self._open(make, tls, sock=connected)
        except BaseException:
            connected.close()
            raise

    async def _open(
        self, make: Callable[[], Protocol], tls: ssl.SSLContext | None, *place: Any, **given: Any
    ) -> Protocol:
        _, protocol = await asyncio.get_running_loop().create_connection(
            make, *place, ssl=tls, server_hostname=self.host if tls else None, **given
        )
        return protocol

    def _worked(self, peer: tuple[Any, ...]) -> None:
        """Moves the address to the front; no lookup is needed to confirm it."""
        self._known_s = time.monotonic()
        if self._known[0][4][0] != peer[0]:
            self._known.sort(key=lambda address: address[4][0] != peer[0])

    def _begin(self) -> asyncio.Future[list[Address]]:
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[list[Address]] = loop.create_future()

        def run() -> None:
            found: Sequence[Any] | Exception
            try:
                found = look_up(self.host, self._port)
            except (OSError, UnicodeError) as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._on_found, lookup, found)

        threading.Thread(target=run, name=f"lookup of {self.host}", daemon=True).start()
        return lookup

    def _on_found(
        self, lookup: asyncio.Future[list[Address]], found: Sequence[Any] | Exception
    ) -> None:
        self._lookup = None
        if isinstance(found, UnicodeError):
            found = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if isinstance(found, Exception):
            lookup.set_exception(found)
            lookup.exception()  # marks it as retrieved: there may be no waiter left
            return
        best = self.known[:1]
        # The agent listens on IPv4 by default.
        self._known = sorted(found, key=lambda a: (a[4][0] not in best, a[0] != socket.AF_INET))
        self._known_s = time.monotonic()
        lookup.set_result(self._known)


class Resolver(AbstractResolver):
    """aiohttp's resolver for one node's host."""

    def __init__(self, name: HostName) -> None:
        self._name = name

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=_numeric(address),
                port=port,
                family=address[0],
                proto=address[2],
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._name.addresses()
        ]

    async def close(self) -> None:
        """Does nothing: it has no resources."""


def _numeric(address: Address) -> str:
    """Returns the address as text, with its interface if it is link-local."""
    if address[0] != socket.AF_INET6 or not address[4][3]:
        return str(address[4][0])
    return socket.getnameinfo(address[4], socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
