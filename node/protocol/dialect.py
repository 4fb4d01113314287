"""What tells the chain of a dialect's bodies: how their parts are read, and in which order."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from node.protocol.canonical import Fields

Canonical = Callable[[msgspec.Raw], bytes]
"""From the JSON of something to its form; nothing for what no prompt shows. Raises `Unreadable`, or
what msgspec raises."""
Forms = Callable[[bytes, int], Iterable[bytes]]
"""The same for the JSON of a list of items, before which the body has so many: the form of each."""


class Unit(NamedTuple):
    """Something that stands before the first item."""

    raw: msgspec.Raw
    canonical: Canonical


class Dialect(NamedTuple):
    preamble: Callable[[Fields], list[Unit]]
    items: Callable[[Fields], msgspec.Raw | None]
    """The list of items, or what is the only one."""
    forms: Forms
    has_list: bool = True
    """False: a list is an item, too."""


objects = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def is_list(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["
