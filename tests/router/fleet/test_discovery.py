"""Agents that announce themselves, with a network played by the test."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import zeroconf.asyncio

from node.agent.announcer import Service, announce_by_zeroconf
from node.protocol.discovery import SERVICE_TYPE, Announcement
from router.errors import DiscoveryFailed, DiscoveryOff
from router.fleet.discovery import (
    FRESH_S,
    LOOK_S,
    MAX_FOUND,
    Discovery,
    FoundService,
    browse_network,
)
from tests.fakes import FakeClock


def txt(node_id: str = "n1", **fields: Any) -> dict[bytes, bytes | None]:
    about = Announcement(node_id, "0.1.0", "6", **fields)
    return {key.encode(): value.encode() for key, value in about.to_txt().items()}


def service(name: str = "studio", node_id: str = "n1", **fields: Any) -> FoundService:
    return FoundService(name, 8801, ("192.168.1.7", "fd00::7"), txt(node_id, **fields))


class Network:
    def __init__(self, *services: FoundService) -> None:
        self.services = services
        self.looks = 0
        self.error: OSError | None = None

    async def browse(self, _wait_s: float) -> Sequence[FoundService]:
        self.looks += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.services


async def test_agents_are_listed_by_name_with_their_addresses() -> None:
    network = Network(service("studio", chip="M3", memory_gib=64), service("mini", "n2"))
    mini, studio = await Discovery(network.browse).look()
    assert (mini.name, studio.name) == ("mini", "studio")
    assert studio.urls == ("https://192.168.1.7:8801", "https://[fd00::7]:8801")
    assert (studio.about.chip, studio.about.memory_gib) == ("M3", 64)


@pytest.mark.parametrize("text", ["studio", "STUDIO", "mac-studio.local", "mac-studio", "n1"])
async def test_an_agent_has_several_names(text: str) -> None:
    (found,) = await Discovery(Network(service(host="mac-studio.local")).browse).look()
    assert found.is_called(text)
    assert not found.is_called("other")
    (nameless,) = await Discovery(Network(service()).browse).look()
    assert not nameless.is_called("")


async def test_what_is_no_agent_or_cannot_be_shown_is_left_out() -> None:
    network = Network(
        FoundService("printer", 631, ("192.168.1.9",), {}),
        FoundService("a\x1b[2J", 8801, ("192.168.1.9",), txt()),
        FoundService("nowhere", 8801, (), txt()),
        FoundService("no port", 0, ("192.168.1.9",), txt()),
    )
    assert await Discovery(network.browse).look() == ()


async def test_a_flood_of_announcements_is_cut() -> None:
    network = Network(*(service(f"a{number}") for number in range(MAX_FOUND + 50)))
    assert len(await Discovery(network.browse).look()) == MAX_FOUND


async def test_looks_at_the_same_time_are_one() -> None:
    clock, network = FakeClock(), Network(service())
    discovery = Discovery(network.browse, clock)
    await asyncio.gather(*(discovery.look() for _ in range(5)))
    assert network.looks == 1
    clock.advance(FRESH_S)
    await discovery.look()
    assert network.looks == 2


async def test_a_network_that_cannot_be_used_and_a_router_that_does_not_look() -> None:
    network = Network()
    network.error = OSError("not permitted")
    with pytest.raises(DiscoveryFailed, match="not permitted"):
        await Discovery(network.browse).look()
    with pytest.raises(DiscoveryOff, match="--discovery"):
        await Discovery(None).look()
    assert (Discovery(None).is_on, Discovery(network.browse).is_on) == (False, True)


class Opened:
    """zeroconf, opened."""

    zeroconf = "zc"

    def __init__(self, interfaces: object) -> None:
        """Accepts whatever interfaces are given."""

    async def __aenter__(self) -> "Opened":
        return self

    async def __aexit__(self, *_: object) -> None:
        CLOSED.append("zeroconf")


class Browser:
    def __init__(self, opened: str, types: list[str], handlers: list[Any]) -> None:
        assert (opened, types) == ("zc", [SERVICE_TYPE])
        for name in ("studio", "gone"):
            full = f"{name}.{SERVICE_TYPE}"
            handlers[0](zeroconf=opened, service_type=SERVICE_TYPE, name=full, state_change=None)

    async def async_cancel(self) -> None:
        CLOSED.append("browser")


class Info:
    port = 8801
    properties = txt()

    def __init__(self, _type: str, name: str) -> None:
        self.name = name

    async def async_request(self, _opened: str, _timeout_ms: int) -> bool:
        return self.name.startswith("studio")

    def parsed_addresses(self) -> list[str]:
        return ["192.168.1.7", "fe80::1"]


CLOSED: list[str] = []


async def test_zeroconf_is_asked_for_each_agent_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", Opened)
    monkeypatch.setattr(zeroconf.asyncio, "AsyncServiceBrowser", Browser)
    monkeypatch.setattr(zeroconf.asyncio, "AsyncServiceInfo", Info)
    CLOSED.clear()
    (found,) = await browse_network(0)
    assert found == FoundService("studio", 8801, ("192.168.1.7",), txt())
    assert CLOSED == ["browser", "zeroconf"]
    assert SERVICE_TYPE == "_mlxfleet._tcp.local."


async def test_an_agent_that_is_announced_is_found() -> None:
    """Multicast on loopback alone: no other machine is concerned."""
    loopback = ["127.0.0.1"]
    about = Announcement("n1", "0.1.0", "6", "M3", 64)
    announced = await announce_by_zeroconf(Service("studio", 8801, ("127.0.0.1",), about), loopback)
    try:
        found: Sequence[FoundService] = ()
        async with asyncio.timeout(60):
            while not found:
                found = await browse_network(LOOK_S, loopback)
    finally:
        await announced.end()
    (agent,) = found
    assert (agent.name, agent.port, agent.addresses) == ("studio", 8801, ("127.0.0.1",))
    assert Announcement.from_txt(agent.txt) == about
