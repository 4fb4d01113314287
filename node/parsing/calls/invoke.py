"""Calls in tags such as `<invoke name="f"><parameter name="a">v</parameter></invoke>`, which
several formats write with names of their own.

Values are bare text that may contain anything, including tags: a value ends with the closing tag
that is followed by another parameter or by the end of the call.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from node.ipc.generate import ToolSchema
from node.parsing.calls.spelled_json import bare_name
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import Argument
from node.parsing.format import ToolFormat
from node.parsing.scanning.markers import markers_of
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.raw_values import RawText, in_order, spell_raw, written_name

_REST_OF_TAG = re.compile(r"[^>\n]*")
_IN_ATTRIBUTE = re.compile(r'[^"><\n]+')
_ATTRIBUTE = re.compile(r'([\w-]+)\s*=\s*"([^"]*)"')

Attributes = Mapping[str, str]
IsText = Callable[[Attributes], bool | None]
"""Returns what a parameter's tag says about its value: True for text, False for JSON, None for
nothing."""


class InvokeTags(NamedTuple):
    """Spellings of each tag. Opening tags are given without their attributes."""

    call: tuple[str, ...]
    call_end: tuple[str, ...]
    parameter: tuple[str, ...]
    parameter_end: tuple[str, ...]


def invoke_tags(prefix: str) -> InvokeTags:
    """Returns the tags with a prefix such as `ns:`."""
    return InvokeTags(
        (f"<{prefix}invoke",),
        (f"</{prefix}invoke>",),
        (f"<{prefix}parameter",),
        (f"</{prefix}parameter>",),
    )


def attributes_of(text: str) -> dict[str, str]:
    """Returns the attributes in a tag."""
    return dict(_ATTRIBUTE.findall(text))


def read_attributes(source: Source) -> Step[dict[str, str]]:
    """Reads the rest of a tag. Raises `Malformed`."""
    text = yield from source.run(_REST_OF_TAG)
    yield from source.expect(">")
    return attributes_of(text)


def read_value(
    source: Source,
    closers: tuple[str, ...],
    followers: tuple[str, ...],
    emit: Callable[[str], None],
) -> Step[str]:
    """Reads a value, passes it to `emit` as it arrives, and returns the follower that came behind
    its closing tag. Raises `Malformed`."""
    markers = markers_of(closers)
    while True:
        closer = yield from source.pass_to(markers, emit)
        space = yield from source.space()
        follower = yield from source.accept(*followers)
        if follower:
            return follower
        if source.ends_within(*followers):
            raise Malformed
        emit(closer + space)


def no_type_stated(_attributes: Attributes) -> bool | None:
    """An `IsText` for tags that do not state the type; the schema decides."""
    return None


def read_invoke(
    source: Source, tags: InvokeTags, is_text: IsText = no_type_stated, only: str = ""
) -> Step[None]:
    """Reads a call from behind the start of its tag and emits it. If `only` is given, it must be a
    call of that tool. Raises `Malformed`."""
    name = (yield from read_attributes(source)).get("name", "")
    if only not in ("", name):
        raise Malformed
    call = source.calls.open(name)
    arguments = BareArguments(call)
    yield from source.space()
    tag = yield from source.expect(*tags.parameter, *tags.call_end)
    while tag in tags.parameter:
        attributes = yield from read_attributes(source)
        if "name" not in attributes:
            raise Malformed
        arguments.begin(attributes["name"], is_text=is_text(attributes))
        followers = (*tags.parameter, *tags.call_end)
        tag = yield from read_value(source, tags.parameter_end, followers, arguments.write)
        arguments.end()
    arguments.close()
    call.end()


def read_invokes(
    source: Source, tags: InvokeTags, is_text: IsText = no_type_stated, only: str = ""
) -> Step[None]:
    """Reads calls in a row like `read_invoke`, from behind the start of the first one's tag."""
    while True:
        yield from read_invoke(source, tags, is_text, only)
        yield from source.space()
        if not (yield from source.accept(*tags.call)):
            return


SpellParameter = Callable[[Lark, Argument, InvokeTags], str]
"""Returns the expression of a parameter, from behind its name's quote to its end."""


def spell_parameter(lark: Lark, argument: Argument, tags: InvokeTags) -> str:
    """Writes a parameter as bare text without a type. Raises `UnsupportedConstraint`."""
    raw = RawText(tags.parameter_end[0], tags.parameter_end[1:])
    return f"{lark.text('>')} {spell_raw(lark, argument, raw)}"


def spell_invoke(
    lark: Lark, tool: ToolSchema, tags: InvokeTags, parameter: SpellParameter = spell_parameter
) -> str:
    """Returns the expression of a call of the tool, from its tag to its end. Raises
    `UnsupportedConstraint`."""
    # Some models put each tag on a line of its own.
    line_end = lark.optional(lark.text("\n"))
    parameters = []
    for argument in arguments_of(tool):
        name = written_name(argument.name, _IN_ATTRIBUTE.pattern, argument.place)
        begin = lark.text(f'{tags.parameter[0]} name="{name}"')
        written = f"{begin} {parameter(lark, argument, tags)} {line_end}"
        parameters.append((written, argument.is_required))
    begin = lark.text(f'{tags.call[0]} name="{bare_name(tool, _IN_ATTRIBUTE)}">')
    return f"{begin} {line_end} {in_order(lark, parameters)} {lark.text(tags.call_end[0])}"


class InvokeCalls(ToolFormat):
    """Calls in such tags, alone or between markers."""

    def __init__(
        self,
        name: str,
        tags: InvokeTags,
        begins: tuple[str, ...],
        ends: tuple[str, ...],
        is_text: IsText = no_type_stated,
    ) -> None:
        """`begins` and `ends` are the markers around calls, in the same order."""
        self.name = name
        self.openers = (*begins, *tags.call)
        self.orphans = (*ends, *tags.call_end)
        self._tags = tags
        self._begins = begins
        self._ends = ends
        self._is_text = is_text

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in self._begins:
            yield from source.space()
            yield from source.expect(*self._tags.call)
        yield from read_invokes(source, self._tags, self._is_text)
        yield from source.accept(*self._ends)
