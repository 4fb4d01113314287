"""Where a server listens, and what else may listen there already."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from serving.http import listening as module
from serving.http.listening import (
    CannotListen,
    PortInUse,
    is_unspecified,
    listening,
    refuse_open_bind,
    url_of,
)

WAIT_S = 10.0


def addresses(listeners: list[socket.socket]) -> list[str]:
    return [listener.getsockname()[0] for listener in listeners]


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), WAIT_S).close()
    except OSError:
        return False
    return True


@pytest.fixture
def localhost_is_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolves localhost as macOS does: IPv6 first."""
    found = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *given: Any, **named: Any) -> list[Any]:
        if host != "localhost":
            return found(host, port, *given, **named)
        return [each for name in ("::1", "127.0.0.1") for each in found(name, port, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@contextmanager
def without_ipv6(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    make = module._listener

    def listener(family: int, address: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "not here")
        return make(family, address)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_listener", listener)
        yield


@pytest.mark.usefixtures("localhost_is_both")
def test_a_name_is_listened_on_by_all_its_addresses_on_one_port_ipv4_first() -> None:
    with listening("localhost", 0) as listeners:
        assert addresses(listeners) == ["127.0.0.1", "::1"]
        ports = {listener.getsockname()[1] for listener in listeners}
        assert len(ports) == 1
        port = ports.pop()
        assert reaches("127.0.0.1", port) and reaches("::1", port)
        assert url_of("localhost", listeners) == f"http://localhost:{port}"
    assert not reaches("127.0.0.1", port)


@pytest.mark.usefixtures("localhost_is_both")
@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_a_machine_without_ipv6_listens_on_what_it_has(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with without_ipv6(monkeypatch, number):
        with listening("localhost", 0) as listeners:
            assert addresses(listeners) == ["127.0.0.1"]
        with (
            pytest.raises(CannotListen, match="::1, port 0, cannot be listened on"),
            listening("::1", 0),
        ):
            pass


def test_all_addresses_of_both_families_have_sockets_of_their_own() -> None:
    with listening("::", 0) as listeners:
        assert addresses(listeners) == ["0.0.0.0", "::"]
        with socket.create_connection(("127.0.0.1", listeners[0].getsockname()[1])) as caller:
            accepted, peer = listeners[0].accept()
            with accepted:
                assert peer[0] == "127.0.0.1" == caller.getsockname()[0]
        assert listeners[1].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def test_all_addresses_of_ipv4_are_no_others() -> None:
    with listening("0.0.0.0", 0) as listeners:
        assert addresses(listeners) == ["0.0.0.0"]
        assert not reaches("::1", listeners[0].getsockname()[1])


@pytest.mark.parametrize(
    ("taken", "host"),
    [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::")],
)
def test_a_port_is_in_use_also_where_the_system_would_give_it_twice(
    monkeypatch: pytest.MonkeyPatch, taken: str, host: str
) -> None:
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with socket.create_server((taken, 0), family=family) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(module, "_listener", lambda *_: pytest.fail("it was bound"))
        with (
            pytest.raises(PortInUse, match=f"Port {port} of {host} is in use"),
            listening(host, port),
        ):
            pass


def test_a_port_that_is_bound_and_answers_nobody_is_in_use_too() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(PortInUse), listening("127.0.0.1", port):
            pass


def test_a_connection_with_itself_is_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port may be given to the connection that asks whether somebody is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()

    class OfItself(socket.socket):
        def connect(self, address: Any) -> None:
            self.bind(place)
            super().connect(address)

    monkeypatch.setattr(socket, "socket", OfItself)
    assert not module._accepts_connections(socket.AF_INET, place)


@pytest.mark.usefixtures("localhost_is_both")
def test_a_free_port_is_looked_for_until_all_addresses_have_it_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = module._listener
    refused: list[int] = []

    def listener(family: int, address: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6 and len(refused) < 3:
            refused.append(address[1])
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return make(family, address)

    monkeypatch.setattr(module, "_listener", listener)
    with listening("localhost", 0) as listeners:
        assert len(listeners) == 2


@pytest.mark.parametrize("host", ["256.0.0.1", "a..b", "no-such-host.invalid"])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    with pytest.raises(CannotListen, match=f"There is no address '{host}'"), listening(host, 0):
        pass


def test_a_port_that_is_not_allowed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def listener(*_: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module, "_listener", listener)
    with pytest.raises(CannotListen, match="Port 1 .* above 1023"), listening("127.0.0.1", 1):
        pass


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("", True),
        ("0.0.0.0", True),
        ("::", True),
        ("0:0::0", True),
        ("::1", False),
        ("mac.local", False),
    ],
)
def test_all_addresses_are_distinguished_from_one(host: str, *, found: bool) -> None:
    assert is_unspecified(host) is found


def test_an_address_that_others_can_reach_must_be_allowed() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        refuse_open_bind(host, allow_plain_http=False)
    for host in ("192.0.2.1", "0.0.0.0", "mini.local"):
        refuse_open_bind(host, allow_plain_http=True)
        with pytest.raises(CannotListen, match=f"{host} is not a loopback .*--allow-plain-http"):
            refuse_open_bind(host, allow_plain_http=False)


def test_a_hint_follows_the_message_about_a_port_in_use() -> None:
    with listening("127.0.0.1", 0) as listeners:
        port = listeners[0].getsockname()[1]
        with (
            pytest.raises(PortInUse, match=r"another with --port\. Look\.$"),
            listening("127.0.0.1", port, "Look."),
        ):
            pass
