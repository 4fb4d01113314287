"""Announcements that follow the machine's addresses."""

import asyncio
from typing import Any

import pytest
import zeroconf.asyncio

from node.agent import announcer as module
from node.agent.announcer import Announced, Announcer, Service, own_addresses
from node.protocol.discovery import SERVICE_TYPE, Announcement

ABOUT = Announcement("n1", "0.1.0", "6", "M3", 64, "studio.local")
SERVICE = Service("studio", 8801, (), ABOUT)
WAIT_S = 20.0


class Network:
    """Announcements as the network has them."""

    def __init__(self) -> None:
        self.shown: list[Service] = []
        self.history: list[tuple[str, ...]] = []
        self.failures = 0
        self.changed = asyncio.Event()

    async def announce(self, service: Service) -> Announced:
        if self.failures:
            self.failures -= 1
            self.changed.set()
            raise OSError("no network")
        self.shown.append(service)
        self.history.append(service.addresses)
        self.changed.set()
        network = self

        class Ended:
            async def end(self) -> None:
                network.shown.remove(service)
                network.changed.set()

        return Ended()

    async def until(self, addresses: list[tuple[str, ...]]) -> None:
        async with asyncio.timeout(WAIT_S):
            while [each.addresses for each in self.shown] != addresses:
                self.changed.clear()
                await self.changed.wait()


async def test_an_address_that_changes_is_announced_anew() -> None:
    network, addresses = Network(), [["192.168.1.7"]]
    announcer = Announcer(SERVICE, lambda: addresses[0], network.announce, check_s=0.001)
    announcer.start()
    await network.until([("192.168.1.7",)])
    addresses[0] = ["192.168.1.9", "10.0.0.2"]
    await network.until([("192.168.1.9", "10.0.0.2")])
    assert network.shown[0].about == ABOUT
    addresses[0] = []
    await network.until([])
    addresses[0] = ["192.168.1.9"]
    await network.until([("192.168.1.9",)])
    await announcer.close()
    assert network.shown == []
    assert len(network.history) == 3


async def test_without_a_network_it_is_tried_again_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = Network()
    network.failures = 3
    announcer = Announcer(SERVICE, lambda: ["192.168.1.7"], network.announce, check_s=0.001)
    announcer.start()
    await network.until([("192.168.1.7",)])
    await announcer.close()
    assert caplog.messages == ["The agent cannot be announced in the local network (no network)."]


def test_only_addresses_that_others_reach_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ip:
        def __init__(self, ip: Any, *, is_ipv4: bool) -> None:
            self.ip = ip
            self.is_IPv4 = is_ipv4

    class Adapter:
        ips = (
            Ip("127.0.0.1", is_ipv4=True),
            Ip("192.168.1.7", is_ipv4=True),
            Ip("169.254.1.1", is_ipv4=True),
            Ip(("fe80::1", 0, 4), is_ipv4=False),
            Ip(("fd00::7", 0, 0), is_ipv4=False),
        )

    monkeypatch.setattr("ifaddr.get_adapters", lambda: [Adapter()])
    assert own_addresses("0.0.0.0", is_unspecified=True) == ("192.168.1.7",)
    assert own_addresses("::", is_unspecified=True) == ("192.168.1.7", "fd00::7")
    assert own_addresses("10.0.0.3", is_unspecified=False) == ("10.0.0.3",)
    assert own_addresses("studio.local", is_unspecified=False) == ()


async def test_zeroconf_is_given_the_service_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class Opened:
        def __init__(self, interfaces: object) -> None:
            assert interfaces is zeroconf.InterfaceChoice.All

        async def async_register_service(self, info: Any, *, allow_name_change: bool) -> Any:
            said.append(info)
            return asyncio.sleep(0)

        async def async_unregister_all_services(self) -> None:
            said.append("unregistered")

        async def async_close(self) -> None:
            said.append("closed")

    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", Opened)
    service = Service("Anna's Mac.Studio", 8801, ("192.168.1.7", "fd00::7"), ABOUT)
    announced = await module.announce_by_zeroconf(service)
    await announced.end()
    info, *ends = said
    assert ends == ["unregistered", "closed"]
    assert info.type == SERVICE_TYPE
    assert info.name == f"Anna's Mac-Studio.{SERVICE_TYPE}"
    assert info.port == 8801
    assert info.server == "mlxfleet-n1.local."
    assert info.parsed_addresses() == ["192.168.1.7", "fd00::7"]
    assert Announcement.from_txt(info.properties) == ABOUT
