"""Calls as JSON objects, alone or in a list, between the markers of a model family.

Families that differ only in markers are data here; each has a file of its own. A list is emitted
once it has ended: either all of it is calls, or it is text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.json_arguments import read_json_arguments
from node.parsing.calls.json_members import STANDARD, CallShape, read_json_call, read_string
from node.parsing.calls.spelled_json import (
    arguments_of,
    bare_name,
    between,
    blocks,
    call_objects,
    list_of,
)
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.json_text import read_json
from node.parsing.parsed_calls import call_of, emit_calls, no_arguments
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, NotACall, Step

NAME = re.compile(r"[^\s\[\](){}<>=,;\"']*")
"""Characters of a function's name that stands without quotes."""
WORD = re.compile(r"[\w.:/\-]*")
"""Characters of a name that other marks may follow at once."""


@dataclass(frozen=True, slots=True)
class JsonSpelling:
    """The spelling in which models write calls, among all that are read."""

    markers: tuple[tuple[str, str], ...] = ()
    """Pairs of the start and the end of a block; the end may be empty. The first pair that the
    vocabulary has is written. Empty for the first markers that are read."""
    in_list: bool = True
    """True if all calls are in one list and one block; else each call is an object in a block of
    its own."""
    arguments: tuple[str, ...] = ("arguments",)
    """Keys that the arguments may have."""


class JsonCalls(ToolFormat):
    """Calls as `{"name": …, "arguments": {…}}`, or a list of such objects, between markers."""

    def __init__(
        self,
        name: str,
        openers: tuple[str, ...],
        closers: tuple[str, ...] = (),
        starts: tuple[str, ...] = (),
        spelling: JsonSpelling = JsonSpelling(),
    ) -> None:
        """An opener that ends with a bracket begins the list. `starts` are brackets and braces;
        such a block must contain nothing but calls."""
        self.name = name
        self.openers = openers
        self.orphans = closers
        self.starts = starts
        self._spelling = spelling
        self._pairs = dict(spelling.markers or [(openers[0], closers[0] if closers else "")])

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        call = call_objects(lark, tools, arguments=self._spelling.arguments)
        in_list = self._spelling.in_list
        opener = lark.prefer(tuple(self._pairs))
        if opener.endswith("["):
            return list_of(lark, call, parallel=parallel, begin=opener)
        body = list_of(lark, call, parallel=parallel) if in_list else call
        block = between(lark, opener, body, self._pairs[opener])
        return blocks(lark, block, parallel=parallel and not in_list)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in self.starts:
            yield from read_bare_calls(source, opener)
            return
        yield from source.space()
        yield from read_marked_calls(source, in_list=opener.endswith("["))
        yield from close_block(source, *self.orphans)


def accept_empty_block(source: Source) -> None:
    """Accepts a block without calls where the answer begins; there it is not text. Raises
    `Malformed` elsewhere."""
    if source.output.has_text:
        raise Malformed
    source.output.mark_edge()


def read_marked_calls(
    source: Source, *, in_list: bool = False, shape: CallShape = STANDARD
) -> Step[None]:
    """Reads a list, which comes or has begun already (`in_list`), or else objects, and emits their
    calls. Raises `Malformed`."""
    if in_list or (yield from source.accept("[")):
        yield from emit_list(source, shape)
        return
    passed = ""
    while True:
        passed = yield from emit_object(source, passed, shape)
        yield from source.space()
        if not (yield from source.accept(",", ";")) and (yield from source.peek()) != "{":
            break
        yield from source.space()
    if passed:
        raise Malformed


def emit_object(source: Source, passed: str, shape: CallShape = STANDARD) -> Step[str]:
    """Reads an object and emits its call, after the text `passed` of earlier objects that are not
    calls, which is content beside other calls of the block. Returns the text that is still to be
    emitted this way. Raises `Malformed`."""
    begin = source.position
    try:
        yield from read_json_call(source, shape, passed)
    except NotACall:
        return passed + source.since(begin)
    return ""


def emit_list(source: Source, shape: CallShape = STANDARD) -> Step[None]:
    """Reads a list from behind its `[` and emits its calls, once it has ended or, if calls are
    streamed, as they arrive. The end may be missing at the end of the output. Raises
    `Malformed`."""
    yield from source.space()
    if (yield from source.accept("]")):
        accept_empty_block(source)
        return
    calls: list[ParsedCall] | None = None if source.calls.are_streamed and shape.is_streamed else []
    separator = ","
    while separator == ",":
        yield from source.space()
        if (yield from source.peek()) == "{":
            yield from read_json_call(source, shape, into=calls)
        else:
            # A value that is not an object is never a call, but some formats ignore it.
            shape.call_of(source, (yield from source.json_value()))
        yield from source.space()
        separator = "" if source.at_end else (yield from source.expect(",", "]"))
    if calls is not None:
        if not calls:
            raise Malformed
        emit_calls(source, calls)


def read_bare_calls(source: Source, opener: str, before: str = "") -> Step[None]:
    """Reads calls without markup: a list, or objects separated by `;`, behind `opener`. `before` is
    content before the first call. Raises `Malformed` as soon as it cannot be a call."""
    if opener == "[":
        calls: list[ParsedCall] = []
        separator = ","
        while separator == ",":
            yield from source.space()
            yield from source.expect("{")
            calls.append((yield from read_exact_call(source)))
            yield from source.space()
            separator = yield from source.expect(",", "]")
        source.output.emit(PartKind.CONTENT, before)
        emit_calls(source, calls)
        return
    while True:
        call = yield from read_exact_call(source)
        source.output.emit(PartKind.CONTENT, before)
        before = ""
        source.calls.emit(*call)
        yield from source.space()
        parted = yield from source.accept(";", ",")
        yield from source.space()
        if not parted and (yield from source.peek()) != "{":
            return
        yield from source.expect("{")


def read_exact_call(source: Source) -> Step[ParsedCall]:
    """Reads an object from behind its `{` that must be exactly a call: the name of a declared tool,
    arguments, and nothing else. Raises `Malformed`."""
    members: dict[str, Any] = {}
    separator = ","
    while separator == ",":
        yield from source.space()
        key = yield from read_string(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        key = "arguments" if key == "parameters" else key
        if key in members:
            raise Malformed
        members[key] = yield from _read_member(source, key)
        yield from source.space()
        separator = yield from source.expect(",", "}")
    if "arguments" not in members:
        raise Malformed
    return call_of(source, members.get("name"), members["arguments"])


def _read_member(source: Source, key: str) -> Step[Any]:
    """Reads the value of a call's key. Raises `Malformed` for a key that a call does not have."""
    if key == "arguments":
        # The value is checked later; null is the only one without a bracket or a quote.
        null = yield from source.accept("null")
        return None if null else (yield from source.json_value())
    value = yield from read_string(source)
    if key == "name":
        source.calls.declared_schema(value)
    elif (key, value) != ("type", "function"):
        raise Malformed
    return value


def read_declared_name(source: Source) -> Step[str]:
    """Reads the bare name of a tool that may be called. Raises `Malformed`."""
    name = yield from source.run(NAME)
    source.calls.declared_schema(name)
    return name


def read_object(source: Source) -> Step[Mapping[str, Any]]:
    """Reads a JSON object, or a string that contains one. Raises `Malformed`."""
    value = yield from source.json_value()
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            raise Malformed from None
    if not isinstance(value, Mapping):
        raise Malformed
    return value


def close_block(source: Source, *closers: str) -> Step[None]:
    """Reads the end of the block if it comes; some models omit it."""
    if closers:
        yield from source.space()
        yield from source.accept(*closers)


def read_call(
    source: Source, name: str, *ends: str, call_id: str = "", is_marked: bool = True
) -> Step[OpenCall]:
    """Reads the arguments of a call of the tool and then one of the ends, which may be missing
    behind an object. Returns the call, which the caller must end. `is_marked` is that of
    `CallEmitter.open`. Raises `Malformed`."""
    call = source.calls.open(name, call_id, is_marked=is_marked)
    yield from source.space()
    if ends and (yield from source.accept(*ends)):
        call.put(no_arguments(source, name))
        return call
    if (yield from source.peek()) == "{":
        yield from read_json_arguments(source, call)
    else:
        text = yield from source.json()
        call.put(call_of(source, name, text).arguments)
    yield from close_block(source, *ends)
    return call


def read_function(source: Source) -> Step[None]:
    """Reads `f>{…}</function>` from behind `<function=` and emits the call. Raises `Malformed`."""
    name = yield from read_declared_name(source)
    yield from source.expect(">")
    (yield from read_call(source, name, "</function>")).end()


def spell_functions(lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
    """Returns the expression of calls that `read_function` reads. Raises
    `UnsupportedConstraint`."""
    calls = [
        between(
            lark, f"<function={bare_name(tool, NAME)}>", arguments_of(lark, tool), "</function>"
        )
        for tool in tools
    ]
    return blocks(lark, lark.one_of(calls), parallel=parallel)
