"""Announcements of agents, and the part of them that routers accept."""

import pytest

from node.protocol.discovery import Announcement

STUDIO = Announcement("n1", "0.1.0", "6", "Apple M3 Ultra", 512, "mac-studio.local")


def txt_of(announcement: Announcement) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in announcement.to_txt().items()}


def test_an_announcement_is_read_as_it_was_written() -> None:
    assert Announcement.from_txt(txt_of(STUDIO)) == STUDIO


def test_it_fits_into_a_record_whatever_a_machine_is_called() -> None:
    long = Announcement("n1", "0", "6", "M" * 900, 8, "é" * 900)
    assert all(len(f"{key}={value}".encode()) <= 255 for key, value in long.to_txt().items())
    assert Announcement.from_txt(txt_of(long)) is not None


@pytest.mark.parametrize(
    ("txt", "expected"),
    [
        ({}, None),
        ({b"id": None}, None),
        ({b"id": b"\x1b[2J"}, None),
        ({b"id": b"x" * 300}, None),
        ({b"id": b"n1"}, Announcement("n1", "", "")),
        ({b"id": b"n1", b"v": b"\xff", b"mem": b"-1"}, Announcement("n1", "\ufffd", "")),
        ({b"id": b"n1", b"chip": "a\u202eb".encode()}, Announcement("n1", "", "")),
        ({b"id": b"n1", b"mem": b"9" * 100}, Announcement("n1", "", "", memory_gib=1 << 20)),
    ],
)
def test_whatever_is_announced_can_be_shown_and_is_bounded(
    txt: dict[bytes, bytes | None], expected: Announcement | None
) -> None:
    assert Announcement.from_txt(txt) == expected
