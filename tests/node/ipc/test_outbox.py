"""Tests the messages that are sent to an agent that does not read."""

import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from node.ipc import outbox
from node.ipc.child_process import linked_sockets
from node.ipc.outbox import Outbox

WAIT_S = 30
pytestmark = [pytest.mark.usefixtures("link_bytes"), pytest.mark.timeout(60)]
LINES = [f"{number:07d}\n".encode() * 100 for number in range(3000)]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = linked_sockets()
    ours.settimeout(WAIT_S)
    with ours, theirs:
        yield ours, theirs


def broken() -> None:
    raise AssertionError("nobody hung up")


def read(end: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        data += end.recv(min(length - len(data), 1 << 16))
    return bytes(data)


def test_nobody_waits_for_a_reader_and_all_arrives_in_order(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    box, sent = Outbox(theirs, broken), b"".join(LINES)
    for line in LINES:
        box.put(line)
    assert read(ours, len(sent)) == sent
    box.flush()
    box.put(b"later")
    assert read(ours, 5) == b"later"


class Busy:
    """A socket that takes nothing at first, and then from one thread at a time."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.sends = threading.Event()
        self.may_send = threading.Event()

    def send(self, data: bytes, _flags: int) -> int:
        if not self.sends.is_set():
            raise BlockingIOError
        self.taken.append(data)
        return len(data)

    def sendall(self, data: memoryview) -> None:
        self.sends.set()
        assert self.may_send.wait(WAIT_S)
        self.taken.append(bytes(data))


def test_nothing_overtakes_what_waits() -> None:
    link = Busy()
    box = Outbox(cast(socket.socket, link), broken)
    box.put(b"first")
    assert link.sends.wait(WAIT_S)
    box.put(b"second")
    link.may_send.set()
    box.flush()
    box.put(b"third")
    assert link.taken == [b"first", b"second", b"third"]


def test_what_threads_send_at_the_same_time_is_not_mixed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    box = Outbox(theirs, broken)

    def send(letter: bytes) -> None:
        for _ in range(200):
            box.put(letter * 1000)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    received = read(ours, 600 * 1000)
    for thread in threads:
        thread.join()
    pieces = [received[at : at + 1000] for at in range(0, len(received), 1000)]
    assert all(len(set(piece)) == 1 for piece in pieces)


def test_beyond_its_bound_a_sender_waits(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 10_000_000)
    ours, theirs = ends
    box, sent = Outbox(theirs, broken), threading.Event()
    piece = b"x" * 1_000_000

    def send() -> None:
        for _ in range(20):
            box.put(piece)
            assert box._waiting_bytes <= 10_000_000
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    read(ours, 20_000_000)
    assert sent.wait(WAIT_S)


def test_one_thing_larger_than_the_bound_is_sent_all_the_same(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 10)
    ours, theirs = ends
    box, piece = Outbox(theirs, broken), bytes(5_000_000)
    box.put(piece)
    assert read(ours, len(piece)) == piece


def test_a_closed_socket_is_reported(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    reported = threading.Event()
    box = Outbox(theirs, reported.set)
    box.put(bytes(5_000_000))
    ours.close()
    assert reported.wait(WAIT_S)
    reported.clear()
    box.flush()
    box.put(b"x")
    assert reported.is_set()
