"""A call whose arguments are being read: their JSON text, told as it comes where that is safe.

A call is begun with its first argument, once its name is known to be of a declared tool. What was
told of it cannot be taken back: where it turns out to be no call after all, the output ends with an
error. A call that may be one that was made before, which is told once, is held until an argument
shows that it is not.
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
from node.parsing.scanning.digests import Digests, digest_of
from node.parsing.scanning.pieces import Pieces

_EMPTY = re.compile(r"\s*\{\s*\}\s*")


class Calls(Protocol):
    """Where calls are told."""

    def earlier(self, name: str) -> list[Digests] | None:
        """Of the calls of the tool that were told, if such are not told again; None: they are."""

    def begin(self, call: "OpenCall") -> None:
        """The call is one: it is told from here on. Raises `Malformed`."""

    def argue(self, text: str) -> None:
        """More of the arguments' JSON of the call that was begun."""

    def end_call(self, call: "OpenCall", digests: Digests) -> None:
        """The call that was begun is whole. Raises `Finished`."""

    def give(self, call: "OpenCall", arguments: str | Mapping[str, Any]) -> None:
        """A whole call that was not begun. Raises `Malformed`, `Finished`."""


class OpenCall:
    """One call. `write` takes its arguments as JSON text, from the brace on, in which the names and
    ends of its members are told; or all comes at once with `put`."""

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
        """`before` is content that is told before the call, if it is one."""
        self.name = name
        self.schema = schema
        self.call_id = call_id
        self.before = before
        self.is_empty = True
        """Whether it has no arguments so far."""
        self.is_begun = False
        self.is_streamed = is_streamed
        """Whether it is told as it comes, as far as it is safe."""
        self._calls = calls
        self._pieces = Pieces()
        """What was written and is not told."""
        self._whole: Mapping[str, Any] | None = None
        self._rivals = calls.earlier(name) if is_streamed else None
        """Calls that said the same as far as this one goes; None: they make no difference."""
        self._digests: Digests = {}
        self._member = ""
        self._value = Pieces()
        """JSON text of the member that is being written."""
        self._is_inside = False
        """Of a member's value."""

    def write(self, text: str) -> None:
        """More of the JSON text; may be empty."""
        if not text:
            return
        if self._is_inside and self._rivals is not None:
            self._value.add(text)
        if self.is_begun:
            self._calls.argue(text)
        else:
            self._pieces.add(text)

    def begin_member(self, name: str) -> None:
        """The value of an argument follows."""
        self._member, self._is_inside, self.is_empty = name, True, False
        self._begin()

    def end_member(self) -> None:
        self._is_inside = False
        if self._rivals is None:
            return
        digest = self._digests[self._member] = digest_of(self._value.take())
        if not self.is_begun:
            self._rivals = [each for each in self._rivals if each.get(self._member) == digest]
            self._begin()

    def put(self, arguments: str | Mapping[str, Any]) -> None:
        """All arguments at once: an object, or its JSON text."""
        if isinstance(arguments, str):
            self.is_empty = _EMPTY.fullmatch(arguments) is not None
            self._pieces.add(arguments)
        else:
            self.is_empty = not arguments
            self._whole = arguments

    def end(self) -> None:
        """The call is one. Raises `Malformed`, `Finished`."""
        if self.is_begun:
            self._calls.end_call(self, self._digests)
        elif self._whole is not None:
            self._calls.give(self, self._whole)
        else:
            self._calls.give(self, self._pieces.take())

    def _begin(self) -> None:
        if self.is_streamed and not self.is_begun and not self._rivals:
            self._calls.begin(self)
            self.is_begun = True
            self._calls.argue(self._pieces.take())


class Members:
    """Writes the arguments of a call one by one."""

    def __init__(self, call: OpenCall) -> None:
        self._call = call
        self._inner = branch_of(call.schema, "object", call.schema)
        self._count = 0

    def takes_text(self, name: str) -> bool:
        """Whether a string stays one as the argument."""
        types = types_of(property_schema(self._inner, name), self._call.schema)
        return not types or "string" in types

    def value(self, name: str, value: Any) -> None:
        """An argument."""
        schema = property_schema(self._inner, name)
        self._begin(name, write_json(fit(value, schema, self._call.schema, depth=1)))
        self._call.end_member()

    def begin_text(self, name: str) -> None:
        """An argument that is a string, which comes in pieces."""
        self._begin(name, '"')

    def text(self, piece: str) -> None:
        self._call.write(write_characters(piece))

    def end_text(self) -> None:
        self._call.write('"')
        self._call.end_member()

    def close(self) -> None:
        """There are no more."""
        self._call.write("}" if self._count else "{}")

    def _begin(self, name: str, value: str) -> None:
        self._call.write(f"{', ' if self._count else '{'}{write_json(name)}: ")
        self._count += 1
        self._call.begin_member(name)
        self._call.write(value)
