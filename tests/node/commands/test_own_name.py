"""The name that a first start gives this machine for others."""

import ipaddress
import socket
from collections.abc import Sequence

import pytest

from node.commands.own_name import own_ipv4, own_name


def answering(answer: str | None) -> tuple[list[Sequence[str]], str]:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str | None:
        commands.append(command)
        return answer

    return commands, own_name(run, mac=True)


def test_a_mac_is_named_by_its_bonjour_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Mac")
    assert answering("Annas-Mac-Studio") == (
        [["scutil", "--get", "LocalHostName"]],
        "Annas-Mac-Studio.local",
    )


@pytest.mark.parametrize("answer", ["", None])
def test_a_mac_that_does_not_report_its_name_is_named_by_its_host_name(
    monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Mac.lan")
    assert answering(answer)[1] == "Mac.lan"


def test_other_machines_go_by_their_host_names() -> None:
    assert own_name(mac=False) == socket.gethostname()


def test_an_address_of_this_machine_is_none_that_only_it_has() -> None:
    address = own_ipv4()
    assert address is None or not ipaddress.ip_address(address).is_loopback


class Routed:
    """A socket whose calls to others leave by an address, or not at all."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def __enter__(self) -> "Routed":
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, _: object) -> None:
        if self.address is None:
            raise OSError("Network is unreachable")

    def getsockname(self) -> tuple[str | None, int]:
        return self.address, 1


@pytest.mark.parametrize(
    ("address", "found"),
    [("192.168.1.7", "192.168.1.7"), ("127.0.0.1", None), ("0.0.0.0", None), (None, None)],
)
def test_where_there_is_no_network_there_is_no_address(
    monkeypatch: pytest.MonkeyPatch, address: str | None, found: str | None
) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: Routed(address))
    assert own_ipv4() == found
