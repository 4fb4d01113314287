"""Tests for node.protocol.versions, and messages of each version as they were sent."""

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from node.protocol import lifecycle, messages, pairing
from node.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Event,
    Finished,
    FinishReason,
    ModelState,
    NodeStatus,
    PrefixGone,
    StatusEvent,
)
from node.protocol.versions import CHANGES, SPOKEN, Change, Fields, Versions, read_version

FIRST_RELEASED = 6
RECORDED = Path(__file__).parent / "recorded"
MODULES = (messages, lifecycle, pairing)
CLASSES = {
    name: each
    for module in MODULES
    for name, each in vars(module).items()
    if isinstance(each, type) and issubclass(each, msgspec.Struct) and each is not msgspec.Struct
}
EVENTS = {each.__name__ for each in get_args(Event)}


def recorded(version: int) -> list[tuple[str, Fields]]:
    lines = (RECORDED / f"protocol_{version}.jsonl").read_text().splitlines()
    return [(line["class"], line["message"]) for line in map(json.loads, lines)]


CASES = [
    pytest.param(version, name, fields, id=f"{version}-{number}-{name}")
    for version in range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION + 1)
    for number, (name, fields) in enumerate(recorded(version))
]


def structs_in(value: object) -> Iterator[str]:
    """The classes of a message and of all within it."""
    if isinstance(value, msgspec.Struct):
        yield type(value).__name__
        for name in value.__struct_fields__:
            yield from structs_in(getattr(value, name))
    elif isinstance(value, tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from structs_in(each)


def keeps(before: Any, after: Any) -> bool:
    """True if `after` has all that `before` has."""
    if isinstance(before, dict):
        return all(name in after and keeps(each, after[name]) for name, each in before.items())
    if isinstance(before, list):
        return len(before) <= len(after) and all(map(keeps, before, after))
    return bool(before == after)


def test_two_versions_that_follow_each_other_are_spoken() -> None:
    assert max(PROTOCOL_VERSION - 1, FIRST_RELEASED) == OLDEST_PROTOCOL_VERSION
    assert set(CHANGES) == set(range(OLDEST_PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 1))


@pytest.mark.parametrize(("version", "name", "fields"), CASES)
def test_a_recorded_message_is_read_and_written_as_it_was(
    version: int, name: str, fields: Fields
) -> None:
    """A change that fails here is one that the other side would not survive: it makes a new version
    (node.protocol.versions), and does not change the recorded messages."""
    wire, body = SPOKEN.wire(version), json.dumps(fields).encode()
    if name in EVENTS:
        event = wire.decode_event(body)
        assert event is not None and type(event).__name__ == name
        again = wire.encode_event(event)
    else:
        again = wire.encode(wire.decode(body, CLASSES[name]))
    assert keeps(fields, json.loads(again))


def test_every_message_is_recorded() -> None:
    """A message that is new in this version is added to its recorded ones."""
    wire = SPOKEN.wire()
    seen: set[str] = set()
    for name, fields in recorded(PROTOCOL_VERSION):
        seen |= set(structs_in(wire.decode(json.dumps(fields).encode(), CLASSES[name])))
    assert set(CLASSES) - seen == set()


@pytest.mark.parametrize(("version", "name", "fields"), CASES)
def test_what_a_newer_side_adds_is_left_out(version: int, name: str, fields: Fields) -> None:
    added = json.dumps({**fields, "an_added_field": {"of": ["any", "kind"]}}).encode()
    plain = json.dumps(fields).encode()
    wire, kind = SPOKEN.wire(version), CLASSES[name]
    assert wire.decode(added, kind) == wire.decode(plain, kind)


def status(**fields: Any) -> NodeStatus:
    wire = SPOKEN.wire()
    body = next(fields for name, fields in recorded(PROTOCOL_VERSION) if name == "NodeStatus")
    return msgspec.structs.replace(wire.decode(json.dumps(body).encode(), NodeStatus), **fields)


def test_members_that_a_newer_side_adds_to_enums_are_unknown() -> None:
    wire = SPOKEN.wire()
    sent = wire.encode(status()).replace(b'"ready"', b'"hibernated"')
    assert wire.decode(sent, NodeStatus).models[0].state is ModelState.UNKNOWN
    body = next(fields for name, fields in recorded(PROTOCOL_VERSION) if name == "Finished")
    event = wire.decode_event(json.dumps({**body, "reason": "preempted"}).encode())
    assert isinstance(event, Finished) and event.reason is FinishReason.UNKNOWN


def test_a_kind_of_event_that_a_newer_side_adds_is_none() -> None:
    wire = SPOKEN.wire()
    assert wire.decode_event(b'{"type":"weather","degrees":20}') is None
    for wrong in (b'{"type":"began"}', b'{"no":"type"}', b"[]"):
        with pytest.raises(msgspec.ValidationError):
            wire.decode_event(wrong)


# --- a version to come ---


def to_older(name: str, fields: Fields) -> Fields | None:
    """Pretends that the next version has renamed a field of a status, given a command a unit, and
    added an event."""
    if name == "PrefixGone":
        return None
    if name == "StatusEvent":
        return {**fields, "status": to_older("NodeStatus", fields["status"])}
    if name == "NodeStatus":
        fields = dict(fields)
        fields["silicon"] = fields.pop("chip")
    elif name == "UnloadCommand":
        fields = {**fields, "min_idle_s": fields["min_idle_s"] / 60}
    return fields


def to_newer(name: str, fields: Fields) -> Fields:
    if name == "StatusEvent":
        return {**fields, "status": to_newer("NodeStatus", fields["status"])}
    if name == "NodeStatus":
        fields = dict(fields)
        fields["chip"] = fields.pop("silicon")
    elif name == "UnloadCommand":
        fields = {**fields, "min_idle_s": fields["min_idle_s"] * 60}
    return fields


NEXT = Versions(7, 6, types.MappingProxyType({7: Change(to_older, to_newer)}))


def test_an_older_version_is_translated_in_both_directions() -> None:
    older, newest = NEXT.wire(6), NEXT.wire()
    assert (older.version, newest.version) == (6, 7)
    now = status(protocol=7)
    sent = json.loads(older.encode(now))
    assert sent["silicon"] == now.chip and "chip" not in sent and sent["protocol"] == 6
    assert older.decode(older.encode(now), NodeStatus) == status(protocol=6)
    line = older.encode_event(StatusEvent(now))
    assert json.loads(line)["status"]["protocol"] == 6
    assert older.decode_event(line) == StatusEvent(status(protocol=6))
    command = lifecycle.UnloadCommand("m", 1, 120.0)
    assert json.loads(older.encode(command))["min_idle_s"] == 2.0
    assert older.decode(older.encode(command), lifecycle.UnloadCommand) == command
    assert json.loads(newest.encode(now)) == json.loads(SPOKEN.wire().encode(now))


def test_an_event_that_an_older_version_does_not_have_is_not_sent() -> None:
    assert NEXT.wire(6).encode_event(PrefixGone("m", 1)) == b""
    assert NEXT.wire(7).encode_event(PrefixGone("m", 1)).endswith(b"\n")
    assert NEXT.wire(6).decode_event(b'{"type":"weather"}') is None


@pytest.mark.parametrize("header", [None, "", "x", "-1", "6.0", "٦", "9" * 10, " 6"])
def test_a_header_without_a_version_has_none(header: str | None) -> None:
    assert read_version(header) is None


def test_versions_are_named() -> None:
    assert read_version("6") == 6
    assert [each in NEXT for each in (5, 6, 7, 8)] == [False, True, True, False]
    assert (str(NEXT), str(Versions(6, 6))) == ("versions 6 to 7", "version 6")
