"""A call whose arguments are being read. Their JSON text is emitted as it arrives where that is
safe.

A call begins to be emitted with its first argument, once its name is known to be a declared tool.
The emitted part cannot be taken back: if the text turns out to be no call after all, the output
ends with an error. Equal calls are emitted once, so a call that may repeat an earlier one is
buffered until an argument differs.
"""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from node.parsing.coercion import (
    Schema,
    branch_of,
    fit,
    property_schema,
    types_of,
)
from node.parsing.json_text import write_characters, write_json
from node.parsing.scanning.argument_hashes import ArgumentHashes, value_hash
from node.parsing.scanning.pieces import Pieces

_EMPTY = re.compile(r"\s*\{\s*\}\s*")


class Calls(Protocol):
    """Receives the calls of an output."""

    def earlier_calls(self, name: str) -> list[ArgumentHashes] | None:
        """Returns the hashes of the emitted calls of the tool; None if repeated calls are emitted
        again."""

    def begin(self, call: "OpenCall") -> None:
        """Begins to emit the call. Raises `Malformed`."""

    def add_arguments(self, text: str) -> None:
        """Emits more of the arguments' JSON text for the call that was begun."""

    def end_call(self, call: "OpenCall", hashes: ArgumentHashes) -> None:
        """Ends the call that was begun. Raises `OutputEnded`."""

    def emit_whole(self, call: "OpenCall", arguments: str | Mapping[str, Any]) -> None:
        """Emits a whole call that was not begun. Raises `Malformed`, `OutputEnded`."""


class OpenCall:
    """One call. Its arguments come either as JSON text through `write`, beginning with the brace,
    with `begin_member` and `end_member` around each value, or all at once through `put`."""

    def __init__(
        self,
        calls: Calls,
        name: str,
        schema: Schema,
        call_id: str = "",
        *,
        before: str = "",
        is_streamed: bool = False,
    ) -> None:
        """`before` is content that is emitted before the call, if it is one."""
        self.name = name
        self.schema = schema
        self.call_id = call_id
        self.before = before
        self.is_empty = True
        """True while the call has no arguments."""
        self.is_begun = False
        self.is_streamed = is_streamed
        """True if the call is emitted as it arrives, as far as that is safe."""
        self._calls = calls
        self._pieces = Pieces()
        """JSON text that was written but not emitted."""
        self._whole: Mapping[str, Any] | None = None
        self._equal_so_far = calls.earlier_calls(name) if is_streamed else None
        """Hashes of earlier calls with the same arguments so far; None if repetition makes no
        difference."""
        self._hashes: ArgumentHashes = {}
        self._member = ""
        self._value = Pieces()
        """JSON text of the member that is being written."""
        self._is_inside = False
        """True within a member's value."""

    def write(self, text: str) -> None:
        """Adds more of the JSON text, which may be empty."""
        if not text:
            return
        if self._is_inside and self._equal_so_far is not None:
            self._value.add(text)
        if self.is_begun:
            self._calls.add_arguments(text)
        else:
            self._pieces.add(text)

    def begin_member(self, name: str) -> None:
        """Begins an argument; its value follows."""
        self._member, self._is_inside, self.is_empty = name, True, False
        self._begin()

    def end_member(self) -> None:
        self._is_inside = False
        if self._equal_so_far is None:
            return
        digest = self._hashes[self._member] = value_hash(self._value.take())
        if not self.is_begun:
            self._equal_so_far = [
                each for each in self._equal_so_far if each.get(self._member) == digest
            ]
            self._begin()

    def put(self, arguments: str | Mapping[str, Any]) -> None:
        """Sets all arguments at once: an object, or its JSON text."""
        if isinstance(arguments, str):
            self.is_empty = _EMPTY.fullmatch(arguments) is not None
            self._pieces.add(arguments)
        else:
            self.is_empty = not arguments
            self._whole = arguments

    def end(self) -> None:
        """Ends the call, which is then emitted in full. Raises `Malformed`, `OutputEnded`."""
        if self.is_begun:
            self._calls.end_call(self, self._hashes)
        elif self._whole is not None:
            self._calls.emit_whole(self, self._whole)
        else:
            self._calls.emit_whole(self, self._pieces.take())

    def _begin(self) -> None:
        if self.is_streamed and not self.is_begun and not self._equal_so_far:
            self._calls.begin(self)
            self.is_begun = True
            self._calls.add_arguments(self._pieces.take())


class Members:
    """Writes the arguments of a call one by one."""

    def __init__(self, call: OpenCall) -> None:
        self._call = call
        self._inner = branch_of(call.schema, "object", call.schema)
        self._count = 0

    def takes_text(self, name: str) -> bool:
        """True if a string stays a string as this argument."""
        types = types_of(property_schema(self._inner, name), self._call.schema)
        return not types or "string" in types

    def value(self, name: str, value: Any) -> None:
        """Writes a whole argument."""
        schema = property_schema(self._inner, name)
        self._begin(name, write_json(fit(value, schema, self._call.schema, depth=1)))
        self._call.end_member()

    def begin_text(self, name: str) -> None:
        """Begins an argument that is a string and comes in pieces."""
        self._begin(name, '"')

    def text(self, piece: str) -> None:
        self._call.write(write_characters(piece))

    def end_text(self) -> None:
        self._call.write('"')
        self._call.end_member()

    def close(self) -> None:
        """Ends the arguments."""
        self._call.write("}" if self._count else "{}")

    def _begin(self, name: str, value: str) -> None:
        self._call.write(f"{', ' if self._count else '{'}{write_json(name)}: ")
        self._count += 1
        self._call.begin_member(name)
        self._call.write(value)
