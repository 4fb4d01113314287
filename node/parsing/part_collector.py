"""Makes parts of what a format finds in an output, up to a stop string."""

import hashlib
from collections.abc import Mapping
from typing import Any

from node.ipc.generate import OutputFormat
from node.ipc.messages import Part, PartKind
from node.parsing.coercion import fit
from node.parsing.fence import Fence
from node.parsing.json_text import is_strict_json, read_json, write_json
from node.parsing.scanning.argument_hashes import ArgumentHashes, argument_hashes
from node.parsing.scanning.step import Malformed, OutputEnded
from node.parsing.scanning.stop_strings import StopMatcher

_CONTENT = PartKind.CONTENT
_REASONING = PartKind.REASONING
_ARGUMENTS = PartKind.TOOL_ARGS
_SPACE_LENGTH = 4096
"""Most characters of white space that are buffered; the start of a longer run is emitted."""


class PartCollector:
    """Collects the parts of one output. White space next to markup belongs to the markup."""

    def __init__(self, output: OutputFormat, stops: StopMatcher, uid: str) -> None:
        """Ids of calls are derived from `uid`."""
        self.ended = False
        """True if a stop string was found."""
        self.error: str | None = None
        """A sentence that says why the output could not be parsed to its end."""
        self._output = output
        self._stops = stops
        self._fence = Fence() if output.is_json else None
        self._uid = uid
        self._schemas = {tool.name: tool.parameters for tool in output.tools}
        self._parts: list[Part] = []
        self._kind = _CONTENT
        self._pieces: list[str] = []
        """Text of the current kind that is not part of a `Part` yet."""
        self._space: dict[PartKind, str] = {_CONTENT: "", _REASONING: ""}
        self._at_edge: dict[PartKind, bool] = {_CONTENT: False, _REASONING: True}
        """True, by kind, if there was markup since the last text of the kind other than white
        space."""
        self._emitted_kinds: set[PartKind] = set()
        """Kinds of which text was emitted. Only behind such text does white space before more of it
        count."""
        self._calls: dict[str, list[ArgumentHashes]] = {}
        """Hashes of the calls that were emitted, by tool."""
        self._call_ids: set[str] = set()
        self._count = 0

    def take(self) -> list[Part]:
        """Returns the parts since the last call of this method."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def close(self) -> None:
        """Makes parts of the buffered text at the end of the output."""
        buffered = self._flush()
        if buffered:
            self._emit_buffered(buffered)
        self._emit_space()

    # --- Sink ---------------------------------------------------------------------------------

    def emit_text(self, kind: PartKind, text: str) -> None:
        if kind is _CONTENT:
            text, self.ended = self._stops.feed(text)
            if self._fence is not None:
                text = self._fence.feed(text)
                text += self._fence.flush() if self.ended else ""
        if self._at_edge[kind] and kind not in self._emitted_kinds:
            text = text.lstrip()
        if text:
            text = self._space[kind] + text
            visible = text.rstrip()
            if visible:
                self._emit(kind, visible)
            space = text[len(visible) :]
            while len(space) > _SPACE_LENGTH:
                self._emit(kind, space[:_SPACE_LENGTH])
                space = space[_SPACE_LENGTH:]
            self._space[kind] = space
        if kind is _CONTENT and self.ended:
            self._emit_space()
            raise OutputEnded

    def resume(self, kind: PartKind) -> None:
        self._at_edge[kind] = False
        if kind is _CONTENT and self._fence is not None:
            self._fence.skip()

    def mark_edge(self) -> None:
        buffered = self._flush()
        if visible := buffered.rstrip():
            self._emit_buffered(visible)
        self._space[_CONTENT] += buffered[len(visible) :]
        for kind in self._space:
            self._at_edge[kind] = True
            if kind not in self._emitted_kinds:
                self._space[kind] = ""

    def emit_call(self, name: str, arguments: str | Mapping[str, Any], call_id: str) -> None:
        text = self._arguments(name, arguments)
        hashes = argument_hashes(text)
        self.mark_edge()
        if hashes not in (self.earlier_calls(name) or ()):
            self.begin_call(name, call_id)
            self.add_arguments(text)
            self._calls.setdefault(name, []).append(hashes)
        if not self._output.parallel_calls:
            raise OutputEnded

    def check_call(self, name: str, arguments: str | Mapping[str, Any]) -> None:
        self._arguments(name, arguments)

    def earlier_calls(self, name: str) -> list[ArgumentHashes] | None:
        return None if self._output.repeated_calls else self._calls.get(name, [])

    def begin_call(self, name: str, call_id: str) -> None:
        self.mark_edge()
        self._join()
        index, self._count = self._count, self._count + 1
        if not call_id or call_id in self._call_ids:
            call_id = self._call_id(index)
        self._call_ids.add(call_id)
        self._parts.append(Part(PartKind.TOOL_START, "", index, name, call_id))

    def add_arguments(self, text: str) -> None:
        if self._kind is not _ARGUMENTS:
            self._join()
            self._kind = _ARGUMENTS
        self._pieces.append(text)

    def end_call(self, name: str, hashes: ArgumentHashes) -> None:
        self._calls.setdefault(name, []).append(hashes)
        if not self._output.parallel_calls:
            raise OutputEnded

    def fail(self, reason: str) -> None:
        self.error = reason
        raise OutputEnded

    # --- parts --------------------------------------------------------------------------------

    def _flush(self) -> str:
        """Returns the buffered content; the text that follows does not belong to it."""
        buffered = self._stops.flush()
        return buffered if self._fence is None else self._fence.feed(buffered) + self._fence.flush()

    def _emit_buffered(self, buffered: str) -> None:
        self._emit(_CONTENT, self._space[_CONTENT] + buffered)
        self._space[_CONTENT] = ""

    def _emit(self, kind: PartKind, text: str) -> None:
        self._emitted_kinds.add(kind)
        self._at_edge[kind] = False
        self._add(kind, text)

    def _emit_space(self) -> None:
        # Behind reasoning, this is the white space before its closing marker.
        space = self._space[_CONTENT]
        if space and not self._at_edge[_CONTENT]:
            self._space[_CONTENT] = ""
            self._add(_CONTENT, space)

    def _add(self, kind: PartKind, text: str) -> None:
        """Adds text; pieces of one kind that follow each other become one part."""
        if kind is not self._kind:
            self._join()
            self._kind = kind
        self._pieces.append(text)

    def _join(self) -> None:
        if self._pieces:
            index = self._count - 1 if self._kind is _ARGUMENTS else 0
            self._parts.append(Part(self._kind, "".join(self._pieces), index))
            self._pieces = []

    def _arguments(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Returns the arguments' JSON text. Raises `Malformed`."""
        schema = self._schemas.get(name)
        if schema is None:
            raise Malformed
        text = arguments if isinstance(arguments, str) else None
        value: Any = arguments
        try:
            # Some models write the object as a string.
            for _ in range(2):
                if isinstance(value, str):
                    text = value
                    value = read_json(value)
            if not isinstance(value, Mapping):
                raise Malformed
            fitted = fit(dict(value), schema)
            if text is None or fitted != value or not is_strict_json(text):
                text = write_json(fitted)
                # Fitted values may be nested too deeply.
                read_json(text)
        except ValueError:
            raise Malformed from None
        return text.strip()

    def _call_id(self, index: int) -> str:
        digest = hashlib.blake2b(f"{self._uid}:{index}".encode(), digest_size=12)
        return f"call_{digest.hexdigest()}"
