"""The description of a dialect from which chains are made: how its bodies are read, and in which
order."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.canonical import Fields

Canonical = Callable[[msgspec.Raw], bytes]
"""Turns JSON into its canonical form, which is empty for content that no prompt shows. Raises
`Unreadable`, or msgspec's errors."""
Forms = Callable[[bytes, int], Iterable[bytes]]
"""Turns the JSON of a list of items into one canonical form for each. The second argument is the
number of the body's items before this list."""


class Unit(NamedTuple):
    """A part of the body that a prompt shows before the first item."""

    raw: msgspec.Raw
    canonical: Canonical


class Dialect(NamedTuple):
    preamble: Callable[[Fields], list[Unit]]
    items: Callable[[Fields], msgspec.Raw | None]
    """The list of items, or the only item."""
    forms: Forms
    has_list: bool = True
    """False if a JSON list is itself an item."""
    options: Callable[[Fields], Fields] | None = None
    """Returns the options that change a prompt from its first token on, under the names of a chat;
    None if the dialect names them so itself."""


objects = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def is_list(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["
