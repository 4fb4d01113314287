"""Calls as `<function=f><parameter=a>v</parameter></function>` in a tag: Qwen3-Coder, Qwen3.5,
Nemotron 3, MiMo, Step 3.5, Seed-OSS; MiniMax M2 and more, in other words.

Values are bare text: whatever stands between the tags, which may hold tags itself. The outer tag
may be missing, and so may the end of a value.
"""

import re
from typing import Any, NamedTuple

from node.parsing.coercion import Schema, declares, property_schema, typed
from node.parsing.format import ToolFormat
from node.parsing.markers import Markers
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_NAME = re.compile(r"[^>\n<]*")
_TEXT_OF_LINE = re.compile(r"[^<\n]*")


class _Value(NamedTuple):
    text: str
    mark: str
    """What followed it."""
    key: str = ""
    """Name of the next parameter, if it is one that follows."""


class XmlCalls(ToolFormat):
    """Calls in one set of tags."""

    def __init__(
        self,
        name: str,
        wrapper: str,
        *,
        function: str = "<function=",
        parameter: str = "<parameter=",
        keeps_last_newline: bool = False,
    ) -> None:
        """`function` and `parameter` are what their tags begin with, up to the name.
        `keeps_last_newline`: it belongs to a value that did not begin with one."""
        self.name = name
        self.openers = (wrapper, function)
        self._wrapper = wrapper
        self._wrapper_end = f"</{wrapper[1:]}"
        self._function = function
        self._function_end = _end_of(function)
        self._parameter = parameter
        self._parameter_end = _end_of(parameter)
        self._keeps_last_newline = keeps_last_newline
        self._in_value = Markers((self._parameter_end, self._function_end, parameter))
        self._longest = max(map(len, self.openers))
        self.orphans = (self._wrapper_end, self._function_end)

    def read(self, source: Source, opener: str) -> Step[None]:
        wrapped = opener == self._wrapper
        said = ""
        if wrapped:
            yield from source.space()
            if (yield from source.peek()) in ("{", "["):
                yield from self._read_json(source)
                return
            if (yield from source.accept(self._wrapper_end)):
                if source.has_spoken:
                    raise Malformed
                source.edge()
                return
            # What a model says before its call, within the tag.
            said = yield from source.run(_TEXT_OF_LINE)
            yield from source.space()
            yield from source.expect(self._function)
        mark: str | None = self._function
        while mark == self._function:
            mark = yield from self._read_function(source, said, wrapped=wrapped)
            if mark != self._wrapper_end:
                mark = yield from source.maybe(self._read_next(source, wrapped=wrapped))
            said = ""

    def _read_next(self, source: Source, *, wrapped: bool) -> Step[str]:
        """The tag that goes on with the block, or ends it."""
        yield from source.space()
        ends = (self._function, self._wrapper_end)
        if not wrapped:
            return (yield from source.expect(*ends))
        mark = yield from source.accept(*ends)
        if mark:
            return mark
        rest = yield from source.run(_TEXT_OF_LINE)
        yield from source.expect(self._wrapper_end)
        _say(source, rest)
        return self._wrapper_end

    def _read_json(self, source: Source) -> Step[None]:
        """What may stand in the tag besides XML."""
        raise Malformed
        yield

    def _read_function(self, source: Source, said: str, *, wrapped: bool) -> Step[str]:
        """Tells the call whose name comes next, and `said` before it; the tag that ended it."""
        name = _unquoted((yield from source.run(_NAME)))
        if name not in source.schemas:
            raise Malformed
        if not (yield from source.accept(">")) and (yield from source.peek()) != "\n":
            raise Malformed
        yield from source.space()
        arguments: Any
        if (yield from source.peek()) == "{":
            arguments = yield from source.json_value()
            yield from source.space()
            mark = yield from source.expect(self._function_end, self._wrapper_end)
        else:
            arguments, mark = yield from self._read_parameters(source, source.schemas[name])
        if not wrapped and not arguments and source.has_spoken:
            # Within a sentence it is talk about calls.
            raise Malformed
        _say(source, said)
        source.call(name, arguments)
        return mark

    def _read_parameters(self, source: Source, schema: Schema) -> Step[tuple[dict[str, Any], str]]:
        """The arguments, and the tag that ended them."""
        arguments: dict[str, Any] = {}
        mark = yield from source.expect(self._parameter, self._function_end, self._wrapper_end)
        key = ""
        if mark == self._parameter:
            key, _ = yield from self._read_key(source)
            if not key:
                raise Malformed
        while mark == self._parameter:
            value = yield from self._read_value(source, schema, {*arguments, key})
            arguments[key] = typed(value.text, property_schema(schema, key), schema)
            mark, key = value.mark, value.key
        return arguments, mark

    def _read_key(self, source: Source) -> Step[tuple[str, str]]:
        """(name of a parameter up to the end of its tag, "" if it is no tag; what was read)."""
        read = yield from source.run(_NAME)
        end = yield from source.accept(">")
        return _unquoted(read) if end else "", read + end

    def _read_value(self, source: Source, schema: Schema, known: set[str]) -> Step[_Value]:
        """Up to the last end tag before the next parameter or the function's end; without one, up
        to those. `known`: the parameters that were there."""
        text = ""
        while True:
            piece, mark = yield from source.capture_any(self._in_value)
            text += piece
            closed = mark == self._parameter_end
            read = mark
            if closed:
                space = yield from source.space()
                mark = yield from source.accept(
                    self._parameter, self._function_end, self._wrapper_end
                )
                read += space + mark
            if mark == self._parameter:
                key, name = yield from self._read_key(source)
                if key and (closed or (key not in known and declares(schema, key))):
                    return _Value(self._bare(text, closed=closed), mark, key)
                read += name
            elif mark and closed:
                return _Value(self._bare(text, closed=True), mark)
            elif mark:
                ended, rest = yield from self._read_end(source)
                if ended:
                    return _Value(self._bare(text, closed=False), ended)
                read += rest
            text += read

    def _read_end(self, source: Source) -> Step[tuple[str, str]]:
        """(the tag that ended the function, what was read) behind its end tag, if that is one
        although the last value has none: then another call follows, or nothing. Else ("", …)."""
        read = yield from source.space()
        end = yield from source.accept(self._wrapper_end)
        read += end + (yield from source.space())
        ahead = yield from source.peek(self._longest)
        ends = not ahead or ahead.startswith(self.openers)
        return (end or self._function_end) if ends else "", read

    def _bare(self, value: str, *, closed: bool) -> str:
        """The value without the line ends that part it from its tags."""
        last = -1 if closed else value.rfind(self._parameter_end)
        if last >= 0:
            value = value[:last]
        begins = value.startswith("\n")
        if begins:
            value = value[1:]
        if begins or not self._keeps_last_newline:
            value = value.removesuffix("\n")
        return value


def _end_of(tag: str) -> str:
    """The end tag of what begins so."""
    return f"</{re.split('[= ]', tag[1:])[0]}>"


def _unquoted(name: str) -> str:
    return name.strip().strip("\"'").strip()


def _say(source: Source, text: str) -> None:
    """Tells what stands in the tag besides calls: in an answer only, for in reasoning it may all
    turn out to be text."""
    if text and source.in_reasoning:
        raise Malformed
    source.say(PartKind.CONTENT, text)
