"""Agents that announce themselves in the local network. Whatever is found is a hint, never trusted:
anybody can announce anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.protocol.discovery import SERVICE_TYPE, Announcement
from node.protocol.names import is_name
from router.errors import DiscoveryFailed, DiscoveryOff
from serving.own_machine import url_at

LOOK_S = 3.0
"""Seconds in which agents are waited for."""
FRESH_S = 2.0
"""Seconds for which a look's result is used again."""
MAX_FOUND = 200
_MAX_ADDRESSES = 8
_ASK_MS = 1000


@dataclass(frozen=True, slots=True)
class FoundService:
    """A service as the network describes it."""

    name: str
    port: int
    addresses: tuple[str, ...]
    txt: Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class FoundAgent:
    """An agent that announces itself."""

    name: str
    port: int
    addresses: tuple[str, ...]
    about: Announcement

    @property
    def urls(self) -> tuple[str, ...]:
        """Its addresses, of which any may be wrong."""
        return tuple(url_at(each, self.port, tls=True) for each in self.addresses)

    def is_called(self, text: str) -> bool:
        """True if a person may mean it by that name."""
        names = (self.name, self.about.host, self.about.host.removesuffix(".local"))
        return text.lower() in {each.lower() for each in (*names, self.about.node_id) if each}


Browse = Callable[[float], Awaitable[Sequence[FoundService]]]
"""Looks for so many seconds. Raises `OSError` if the network cannot be used."""


class Discovery:
    """Looks for agents when that is asked for; between looks nothing is sent."""

    def __init__(
        self,
        browse: Browse | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`browse` is None if discovery is switched off."""
        self._browse = browse
        self._clock = clock
        self._looking = asyncio.Lock()
        self._found: tuple[FoundAgent, ...] = ()
        self._found_s = -FRESH_S

    @property
    def is_on(self) -> bool:
        return self._browse is not None

    async def look(self) -> tuple[FoundAgent, ...]:
        """Returns the agents that respond within `LOOK_S`, in order of their names. Raises
        `DiscoveryOff` and `DiscoveryFailed`."""
        if self._browse is None:
            raise DiscoveryOff
        async with self._looking:
            if self._clock() - self._found_s >= FRESH_S:
                try:
                    services = await self._browse(LOOK_S)
                except OSError as error:
                    raise DiscoveryFailed(f"{DiscoveryFailed.__doc__} ({error})") from error
                found = [agent for each in services[:MAX_FOUND] if (agent := _agent_of(each))]
                self._found = tuple(sorted(found, key=lambda each: each.name))
                self._found_s = self._clock()
        return self._found


def _agent_of(service: FoundService) -> FoundAgent | None:
    """Returns None for a service that is no agent, or cannot be shown."""
    about = Announcement.from_txt(service.txt)
    addresses = tuple(service.addresses[:_MAX_ADDRESSES])
    if about is None or not is_name(service.name) or not addresses or not service.port:
        return None
    return FoundAgent(service.name, service.port, addresses, about)


async def browse_network(
    wait_s: float, interfaces: Sequence[str] | None = None
) -> Sequence[FoundService]:
    """Looks by multicast DNS, on these addresses of the machine; None for all."""
    library = await asyncio.to_thread(_load_zeroconf)
    aio = library.asyncio
    names: set[str] = set()

    def on_change(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        if len(names) < MAX_FOUND:
            names.add(name)

    async with aio.AsyncZeroconf(interfaces=interfaces or library.InterfaceChoice.All) as opened:
        browser = aio.AsyncServiceBrowser(opened.zeroconf, [SERVICE_TYPE], handlers=[on_change])
        await asyncio.sleep(wait_s)
        await browser.async_cancel()
        infos = [aio.AsyncServiceInfo(SERVICE_TYPE, name) for name in names]
        asked = [info.async_request(opened.zeroconf, _ASK_MS) for info in infos]
        answered = await asyncio.gather(*asked)
        return [
            _service_of(info) for info, is_there in zip(infos, answered, strict=True) if is_there
        ]


def _load_zeroconf() -> Any:
    """Imports the library, which takes long."""
    import zeroconf.asyncio

    return zeroconf


def _service_of(info: Any) -> FoundService:
    return FoundService(
        info.name.removesuffix(f".{SERVICE_TYPE}"),
        info.port or 0,
        tuple(each for each in info.parsed_addresses() if not each.startswith("fe80")),
        info.properties,
    )
