"""Lines of an event stream, whole and broken."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest

from node.protocol.messages import (
    Began,
    CancelMarked,
    Event,
    PrefixDelta,
    PrefixGone,
    PrefixSnapshot,
    StatusEvent,
    Stored,
    encode_event,
)
from node.protocol.versions import SPOKEN
from router.upstream.node_events import NodeEvents
from tests.router.conftest import FINISHED, node_status

WIRE = SPOKEN.wire()
ALONE: list[Event] = [
    FINISHED,
    Began("r", "o"),
    Stored("resp_1", "o", 1, 2, 3),
    CancelMarked("r", 1.0),
]
BELIEVED: list[Event] = [
    StatusEvent(node_status()),
    PrefixSnapshot("m", 1, 0, 0, 1, b""),
    PrefixDelta("m", 1, 1, b"", b""),
    PrefixGone("m", 1),
]


def broken(event: Event) -> bytes:
    fields: dict[str, Any] = json.loads(encode_event(event))
    inner = fields.get("status", fields)
    field = next((name for name, value in inner.items() if isinstance(value, int | float)), "")
    inner[field or "request_id"] = 10**30 if field else "x" * 10_000
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize("event", ALONE + BELIEVED, ids=lambda event: type(event).__name__)
def test_an_event_is_read(event: Event) -> None:
    assert NodeEvents("http://n").read(encode_event(event) + b"\n", WIRE) == event


@pytest.mark.parametrize("event", ALONE, ids=lambda event: type(event).__name__)
def test_an_event_that_stands_alone_is_dropped_with_one_line(
    event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    events = NodeEvents("http://n")
    for _ in range(1000):
        assert events.read(broken(event), WIRE) is None
    (line,) = caplog.messages
    assert line.startswith("http://n sent a bad ") and len(line) < 200
    assert events.read(encode_event(event), WIRE) == event


@pytest.mark.parametrize("event", BELIEVED, ids=lambda event: type(event).__name__)
def test_an_event_that_others_build_on_is_refused(event: Event) -> None:
    with pytest.raises(msgspec.ValidationError):
        NodeEvents("http://n").read(broken(event), WIRE)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b'{"type":5}',
        b'{"type":"finished"',
        b"\xff\xfe",
    ],
    ids=ascii,
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        NodeEvents("http://n").read(line, WIRE)


def test_a_kind_that_only_newer_agents_have_is_left_out_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    events = NodeEvents("http://n")
    for _ in range(1000):
        assert events.read(b'{"type":"weather","degrees":20}\n', WIRE) is None
    assert caplog.messages == ["http://n sent a 'weather' event, which is unknown here"]
