"""Nodes by name: names that are slow, gone or have several addresses, one of which is dead."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from node.protocol.messages import encode_status
from router.upstream import host_name
from router.upstream.credentials import NodeCredential
from router.upstream.host_name import Address, HostName, Resolver, resolves
from router.upstream.http_client import Upstream
from router.upstream.node_client import NodeClient
from tests.router.conftest import WAIT_S, Request, StartNode, node_status
from tests.router.upstream.test_http_client import HEAD

LookUp = Callable[[str], Sequence[Address]]
only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="a full queue drops callers on Linux"
)


def ipv4(address: str, port: int = 80) -> Address:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


def ipv6(address: str, port: int = 80, scope: int = 0) -> Address:
    return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, scope))


NO_SUCH_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class Network:
    """A resolver of names. A name that is `slow` does not resolve until it is released."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[Address]] = {}
        self.lookups: list[str] = []
        self.go_on = threading.Event()

    def look_up(self, host: str, port: int, *, flags: int = 0) -> Sequence[Any]:
        if flags & socket.AI_NUMERICHOST:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        self.lookups.append(host)
        if host.startswith("slow"):
            self.go_on.wait(WAIT_S)
        if host not in self.addresses:
            raise NO_SUCH_NAME
        return self.addresses[host]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network()
    monkeypatch.setattr(host_name, "look_up", made.look_up)
    yield made
    made.go_on.set()


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was found is fresh."""
    monkeypatch.setattr(host_name, "FRESH_S", 0.0)


async def answer(request: Request) -> None:
    if request.target == "/fleet/status":
        await request.answer(encode_status(node_status()))
    else:
        await request.answer(b"answer")


async def connect(name: HostName) -> None:
    """Makes a connection, and ends it."""
    made = await name.connect(Ended)
    made.transport.abort()


class Ended(asyncio.Protocol):
    transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)


async def call(url: str) -> None:
    """By both clients of a node: one for inference, one for control."""
    upstream = Upstream(url)
    async with NodeClient(url, NodeCredential("token")) as client:
        assert (await client.control.status()).engine == "scripted"
        response = await upstream.send(HEAD, b"{}")
        assert await response.read_all() == b"answer"
        upstream.close()


async def test_names_that_do_not_resolve_keep_no_other_node_waiting(
    network: Network, start_node: StartNode
) -> None:
    node = await start_node(answer)
    network.addresses["here.local"] = [ipv4("127.0.0.1", node.port)]
    dead = [
        asyncio.create_task(call(f"http://slow-{number}.local:{node.port}")) for number in range(40)
    ]
    while len(network.lookups) < len(dead):
        await asyncio.sleep(0)
    await asyncio.wait_for(call(f"http://here.local:{node.port}"), WAIT_S / 2)
    network.go_on.set()
    ends = await asyncio.gather(*dead, return_exceptions=True)
    assert all(isinstance(end, Exception) for end in ends)


async def test_many_connections_to_a_name_ask_for_it_once(
    network: Network, start_node: StartNode
) -> None:
    node = await start_node(answer)
    network.addresses["slow.local"] = [ipv4("127.0.0.1", node.port)]
    name = HostName("slow.local", node.port)
    connecting = [asyncio.create_task(connect(name)) for _ in range(20)]
    await asyncio.sleep(0)
    network.go_on.set()
    await asyncio.gather(*connecting)
    await connect(name)
    assert network.lookups == ["slow.local"]


@pytest.mark.usefixtures("stale")
async def test_a_name_that_is_gone_leaves_its_last_address(
    network: Network, start_node: StartNode
) -> None:
    node = await start_node(answer)
    network.addresses["mac.local"] = [ipv4("127.0.0.1", node.port)]
    name = HostName("mac.local", node.port)
    await connect(name)
    del network.addresses["mac.local"]
    await connect(name)
    assert network.lookups == ["mac.local", "mac.local"]


@pytest.mark.usefixtures("stale")
async def test_a_name_that_is_slow_is_not_waited_for_where_an_address_is_known(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_name, "KNOWN_WAIT_S", 0.01)
    network.go_on.set()
    network.addresses["slow.local"] = [ipv4("192.0.2.7")]
    name = HostName("slow.local", 80)
    await name.addresses()
    network.go_on.clear()
    network.addresses["slow.local"] = [ipv4("192.0.2.8")]
    assert name.known == ["192.0.2.7"]
    assert await name.addresses() == [ipv4("192.0.2.7")]
    network.go_on.set()
    async with asyncio.timeout(WAIT_S):
        while name.known != ["192.0.2.8"]:
            await name.addresses()


async def test_a_slow_name_without_an_address_is_waited_for_as_long_as_a_connection(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_name, "CONNECT_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match=r"slow\.local did not resolve within 0\.01 s"):
        await HostName("slow.local", 80).addresses()


@pytest.mark.parametrize("host", ["nobody.local", "a..b", "x" * 70 + ".local"])
async def test_a_name_that_is_none_is_an_os_error(host: str) -> None:
    with pytest.raises(socket.gaierror):
        await HostName(host, 80).addresses()


async def test_a_failed_connection_has_the_name_looked_up_again(
    network: Network, start_node: StartNode
) -> None:
    node = await start_node(answer)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        network.addresses["mac.local"] = [ipv4("127.0.0.1", nobody.getsockname()[1])]
        name = HostName("mac.local", node.port)
        with pytest.raises(ConnectionRefusedError):
            await connect(name)
    network.addresses["mac.local"] = [ipv4("127.0.0.1", node.port)]
    await connect(name)


async def test_ipv4_goes_first_and_then_whatever_worked_last(network: Network) -> None:
    network.addresses["mac.local"] = [ipv6("fe80::1"), ipv6("fd00::1"), ipv4("192.0.2.1")]
    name = HostName("mac.local", 80)
    await name.addresses()
    assert name.known == ["192.0.2.1", "fe80::1", "fd00::1"]
    name._worked(("fd00::1", 80, 0, 0))
    assert name.known == ["fd00::1", "192.0.2.1", "fe80::1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.1"])
async def test_an_address_is_never_looked_up(network: Network, host: str) -> None:
    name = HostName(host, 80)
    assert not name.is_name
    assert len(await name.addresses()) == 1
    assert network.lookups == []


async def test_an_address_of_one_link_keeps_its_interface(network: Network) -> None:
    index, interface = socket.if_nameindex()[0]
    network.addresses["mac.local"] = [ipv6("fe80::1", scope=index), ipv6("fd00::1")]
    found = await Resolver(HostName("mac.local", 80)).resolve("mac.local", 80)
    assert [each["host"] for each in found] == [f"fe80::1%{interface}", "fd00::1"]


def test_a_lookup_that_outlives_its_loop_has_no_effect(network: Network) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(HostName("slow.local", 80).addresses())
        while not network.lookups:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    lookups = [each for each in threading.enumerate() if each.name == "lookup of slow.local"]
    network.go_on.set()
    for thread in lookups:
        thread.join(WAIT_S)
    assert len(lookups) == 1


@contextlib.contextmanager
def dropping_callers(port: int) -> Iterator[str]:
    """An address whose port answers nobody, as behind a firewall."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.2", port))
        deaf.listen(0)
        for _ in range(4):  # more than its backlog has room for
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


@only_linux
async def test_an_address_that_drops_callers_costs_little(
    network: Network, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_name, "CONNECT_TIMEOUT_S", WAIT_S)
    node = await start_node(answer)
    with dropping_callers(node.port) as dead:
        network.addresses["mac.local"] = [ipv4(dead, node.port), ipv4("127.0.0.1", node.port)]
        # Whoever waits for the first address to answer waits for the system, some two minutes.
        await asyncio.wait_for(call(f"http://mac.local:{node.port}"), WAIT_S)


async def test_a_name_that_is_doubted_is_looked_up_again(
    network: Network, start_node: StartNode
) -> None:
    node = await start_node(answer)
    network.addresses["here.local"] = [ipv4("127.0.0.1", node.port)]
    name = HostName("here.local", node.port)
    await connect(name)
    await connect(name)
    assert network.lookups == ["here.local"]
    name.expire()
    await connect(name)
    assert network.lookups == ["here.local"] * 2


async def test_an_address_and_a_name_of_this_machine_resolve_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await resolves("127.0.0.1")
    assert await resolves("localhost")

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(host_name, "look_up", unknown)
    assert not await resolves("studio.local")
