"""Magic packets, received by a real socket."""

import socket

import pytest

from router.upstream.magic_packet import EVERYBODY, magic_packet, read_mac, send, targets

MAC = "a0:b1:c2:d3:e4:f5"


@pytest.mark.parametrize("text", [MAC, "A0-B1-C2-D3-E4-F5", " a0b1c2d3e4f5 "])
def test_an_address_is_read_however_it_is_written(text: str) -> None:
    assert read_mac(text) == MAC


@pytest.mark.parametrize(
    "text", ["", "a0:b1:c2:d3:e4", "a0:b1:c2:d3:e4:g5", MAC + ":00", "ａ0b1c2d3e4f5"]
)
def test_other_texts_are_no_address(text: str) -> None:
    assert read_mac(text) is None


def test_a_packet_has_the_address_sixteen_times() -> None:
    packet = magic_packet(MAC)
    assert packet[:6] == b"\xff" * 6 and packet[6:] == bytes.fromhex("a0b1c2d3e4f5") * 16


def test_everybody_gets_it_and_the_node_s_own_network() -> None:
    assert targets("https://studio.local:8801") == (EVERYBODY,)
    assert targets("https://192.168.1.7:8801") == (EVERYBODY, "192.168.1.255", "192.168.1.7")
    assert targets("https://[fd00::7]:8801") == (EVERYBODY,)


def test_it_is_sent_as_a_datagram_although_another_address_fails() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inbox:
        inbox.bind(("127.0.0.1", 0))
        inbox.settimeout(5)
        send([MAC], ["300.1.1.1", "127.0.0.1"], inbox.getsockname()[1])
        assert inbox.recv(200) == magic_packet(MAC)


def test_nothing_that_could_be_sent_is_an_error() -> None:
    with pytest.raises(OSError):
        send([MAC], ["300.1.1.1"])
    with pytest.raises(OSError, match="nothing to send"):
        send([], ["127.0.0.1"])
