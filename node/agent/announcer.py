"""Announces the agent in the local network while it listens beyond loopback.

An address that changes is announced anew, so that paired routers find the agent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node.protocol.discovery import SERVICE_TYPE, Announcement
from serving.log_limiter import LogLimiter

CHECK_S = 10.0
"""Seconds between two looks at the machine's addresses."""
_INSTANCE_CHARS = 63

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """The content of an announcement."""

    name: str
    """The name of the machine, for people."""
    port: int
    addresses: tuple[str, ...]
    about: Announcement


class Announced(Protocol):
    """One announcement."""

    async def end(self) -> None:
        """Takes it back."""


Announce = Callable[[Service], Awaitable[Announced]]
"""Raises `OSError` if the network cannot be used."""


class Announcer:
    """Keeps the announcement of one agent up to date."""

    def __init__(
        self,
        service: Service,
        addresses: Callable[[], Sequence[str]],
        announce: Announce | None = None,
        check_s: float = CHECK_S,
    ) -> None:
        """`addresses` are those of the machine at the time, at which others reach the agent."""
        self._service = service
        self._addresses = addresses
        self._announce = announce or announce_by_zeroconf
        self._check_s = check_s
        self._shown: tuple[str, ...] = ()
        self._announced: Announced | None = None
        self._task: asyncio.Task[None] | None = None
        self._log_limiter = LogLimiter()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end()

    async def _run(self) -> None:
        while True:
            addresses = tuple(await asyncio.to_thread(self._addresses))
            if addresses != self._shown:
                await self._show(addresses)
            await asyncio.sleep(self._check_s)

    async def _show(self, addresses: tuple[str, ...]) -> None:
        await self._end()
        if not addresses:
            self._shown = addresses
            return
        old = self._service
        try:
            self._announced = await self._announce(
                Service(old.name, old.port, addresses, old.about)
            )
        except OSError as error:
            if self._log_limiter.due("network"):
                log.warning("The agent cannot be announced in the local network (%s).", error)
            return
        self._shown = addresses

    async def _end(self) -> None:
        announced, self._announced = self._announced, None
        if announced is not None:
            with contextlib.suppress(OSError):
                await announced.end()


def own_addresses(bound: str, *, is_unspecified: bool) -> tuple[str, ...]:
    """The addresses at which other machines reach an agent that is bound to that address."""
    if not is_unspecified:
        return (bound,) if _is_reachable(bound) else ()
    import ifaddr

    found = [
        str(ip.ip if ip.is_IPv4 else ip.ip[0])
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
    with_ipv6 = ":" in bound
    kept = [each for each in found if _is_reachable(each) and (with_ipv6 or ":" not in each)]
    return tuple(sorted(dict.fromkeys(kept)))


def _is_reachable(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_link_local)


async def announce_by_zeroconf(
    service: Service, interfaces: Sequence[str] | None = None
) -> Announced:
    """Announces it by multicast DNS, on these addresses of the machine; None for all."""
    zeroconf = await asyncio.to_thread(_load_zeroconf)
    label = service.name.encode()[:_INSTANCE_CHARS].decode(errors="ignore").replace(".", "-")
    info = zeroconf.ServiceInfo(
        SERVICE_TYPE,
        f"{label}.{SERVICE_TYPE}",
        port=service.port,
        properties=service.about.to_txt(),
        # A name of our own: macOS itself answers for the machine's.
        server=f"mlxfleet-{service.about.node_id}.local.",
        addresses=[_packed(each) for each in service.addresses],
    )
    opened = zeroconf.asyncio.AsyncZeroconf(interfaces=interfaces or zeroconf.InterfaceChoice.All)
    try:
        await (await opened.async_register_service(info, allow_name_change=True))
    except BaseException:
        await opened.async_close()
        raise
    return _ByZeroconf(opened)


def _load_zeroconf() -> Any:
    """Imports the library, which takes long."""
    import zeroconf.asyncio

    return zeroconf


class _ByZeroconf:
    def __init__(self, opened: Any) -> None:
        self._opened = opened

    async def end(self) -> None:
        await self._opened.async_unregister_all_services()
        await self._opened.async_close()


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)
