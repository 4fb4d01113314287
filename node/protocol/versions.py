"""Versions of the protocol between routers and agents: two that follow each other can talk.

Within a version, messages only gain: fields with defaults, kinds of events, members of enums, and
paths. Each side leaves out what it does not know. A change that an older side must not leave out (a
field that is renamed or removed, or that restricts what a command does; a narrower bound; other
packed bytes) makes a new version: `PROTOCOL_VERSION` grows by one, and `CHANGES` gets the
translation to the version before, the only place that knows how that one spells a message.

A request is in the version that its `HEADER_PROTOCOL` names, and its response in the same. A router
begins with its newest. An agent that does not speak it responds with 426 before it does anything,
names its own newest in the same header, and the router repeats the request in that one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import msgspec

from node.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Event,
    NodeStatus,
    StatusEvent,
    decode_event,
)

Fields = dict[str, Any]
"""A message as JSON has it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """The differences between one version and the version before it.

    Each function gets the name of a message's class with its fields, and returns the fields as the
    other version has them; a message that is the same in both is returned as it is. A message
    within another one, such as the status of a `StatusEvent`, is passed with the outer one only.
    """

    to_older: Callable[[str, Fields], Fields | None]
    """None for an event that the older version does not have."""
    to_newer: Callable[[str, Fields], Fields]


CHANGES: Mapping[int, Change] = {}
"""Each version that is spoken, but the oldest, with its change. Version 6 is the first that was
released."""
_EVENTS = {str(each.__struct_config__.tag): each.__name__ for each in get_args(Event)}


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that one side speaks."""

    newest: int
    oldest: int
    changes: Mapping[int, Change] = field(default_factory=dict)

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"version {self.newest}"
        return f"versions {self.oldest} to {self.newest}"

    def wire(self, version: int | None = None) -> "Wire":
        """The wire of a version that is spoken; the newest if None."""
        version = self.newest if version is None else version
        return Wire(version, [self.changes[each] for each in range(self.newest, version, -1)])


SPOKEN = Versions(PROTOCOL_VERSION, OLDEST_PROTOCOL_VERSION, CHANGES)
"""The versions that this release speaks."""


def read_version(header: str | None) -> int | None:
    """Returns the version in a header; None if it has none."""
    if header is None or not (header.isascii() and header.isdecimal() and len(header) < 10):
        return None
    return int(header)


class Wire:
    """Writes and reads the messages of one version."""

    def __init__(self, version: int, changes: list[Change]) -> None:
        """`changes` lead from the newest version down to this one."""
        self.version = version
        self._changes = changes

    def encode(self, message: msgspec.Struct) -> bytes:
        return msgspec.json.encode(self._older(message) if self._changes else message)

    def encode_event(self, event: Event) -> bytes:
        """The event as a line; empty if the version does not have it."""
        fields = self._older(event) if self._changes else event
        return b"" if fields is None else msgspec.json.encode(fields) + b"\n"

    def decode(self, body: bytes | bytearray, kind: type[T]) -> T:
        """Raises `msgspec.MsgspecError` or `UnicodeDecodeError`."""
        return msgspec.json.decode(self._newer(body, kind.__name__), type=kind)

    def decode_event(self, line: bytes) -> Event | None:
        """Returns None for a kind of event that is not known here. Raises what `decode` raises."""
        try:
            if self._changes:
                line = bytes(self._newer(line, _EVENTS.get(kind_of_event(line), "")))
            event: Event = decode_event(line)
        except msgspec.ValidationError:
            if kind_of_event(line) in _EVENTS:
                raise
            return None
        return event

    def _older(self, message: msgspec.Struct) -> Fields | None:
        fields: Fields | None = msgspec.to_builtins(message)
        for change in self._changes:
            if fields is not None:
                fields = change.to_older(type(message).__name__, fields)
        if fields is not None and isinstance(message, NodeStatus):
            fields["protocol"] = self.version
        elif fields is not None and isinstance(message, StatusEvent):
            fields["status"]["protocol"] = self.version
        return fields

    def _newer(self, body: bytes | bytearray, name: str) -> bytes | bytearray:
        if not self._changes:
            return body
        fields = msgspec.json.decode(body, type=Fields)
        for change in reversed(self._changes):
            fields = change.to_newer(name, fields)
        return msgspec.json.encode(fields)


class _Tagged(msgspec.Struct):
    type: str


_decode_tag = msgspec.json.Decoder(_Tagged).decode


def kind_of_event(line: bytes) -> str:
    """Returns an event's kind, as its `type` names it. Raises `msgspec.MsgspecError`."""
    return _decode_tag(line).type
