"""The socket options by which the system probes a connection's other end."""

import socket
import sys
from typing import cast

import pytest

from serving.http.tcp_keepalive import Probes, probe

PROBES = Probes(idle_s=15, each_s=5, count=3, unread_s=1.5)


def test_a_silent_connection_is_probed_as_often_as_wanted() -> None:
    with socket.socket() as connection:
        probe(connection, PROBES)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0))
        options = (idle, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [connection.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [15, 5, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone limits how long bytes stay unread")
def test_bytes_stay_unread_as_long_as_is_set_or_else_as_the_system_likes() -> None:
    with socket.socket() as connection:
        probe(connection, Probes(15, 5, 3))
        assert not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        probe(connection, PROBES)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500


def test_a_connection_that_has_ended_is_left_alone() -> None:
    connection = socket.socket()
    connection.close()
    probe(connection, PROBES)
    assert connection.fileno() == -1


class Recorded:
    """A connection that keeps what is set on it."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if level == socket.IPPROTO_TCP:
            self.options[option] = value


@pytest.mark.parametrize(
    ("platform", "unread_s", "found"),
    [
        ("darwin", 1.5, 2),
        ("darwin", 30, 30),
        ("darwin", 0, None),
        ("linux", 30, None),
    ],
)
def test_macos_has_a_number_of_its_own_for_bytes_that_stay_unread(
    platform: str, unread_s: float, found: int | None
) -> None:
    connection = Recorded()
    probe(cast(socket.socket, connection), Probes(15, 5, 3, unread_s), platform)
    assert connection.options.get(0x80) == found
