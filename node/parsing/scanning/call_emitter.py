"""Emits the calls that a format finds in an output, as a whole or as they arrive."""

from collections.abc import Mapping
from typing import Any

from node.parsing.scanning.argument_hashes import ArgumentHashes
from node.parsing.scanning.block import Block
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.sink import ParsedCall, Sink
from node.parsing.scanning.step import Malformed
from node.parsing.scanning.text_emitter import TextEmitter
from node.protocol.errors import BROKEN_CALL

_BROKEN = BROKEN_CALL + "{}: it left the format of its calls."
_KEPT_LENGTH = 4096
"""Number of emitted characters of arguments that are kept before they are dropped; dropping them at
once costs more than keeping them."""
_ENDED = BROKEN_CALL + "{}: it ended its output there."


class CallEmitter:
    """Emits the calls of one output."""

    def __init__(
        self,
        sink: Sink,
        schemas: Mapping[str, Mapping[str, Any]],
        block: Block,
        output: TextEmitter,
    ) -> None:
        self.schemas = schemas
        """JSON schemas of the arguments of the tools that may be called, by the tool's name."""
        self._sink = sink
        self._block = block
        self._output = output
        self._kept: list[ParsedCall] | None = None
        """The calls of the block while it is not certain that they count; None if calls are
        emitted."""
        self._are_dropped = False
        self._are_streamed = False
        self._open: OpenCall | None = None
        """The call that is being emitted while its arguments arrive."""

    def stream(self) -> None:
        """From now on the arguments of calls are emitted as they arrive."""
        self._are_streamed = True

    def drop(self) -> None:
        """From now on calls may be of any tool, and are dropped."""
        self._are_dropped = True
        self.schemas = _AnyTool()

    @property
    def are_streamed(self) -> bool:
        """True if the calls of the block that is being read are emitted as they arrive."""
        return self._are_streamed and self._kept is None and not self._are_dropped

    @property
    def are_kept(self) -> bool:
        """True if the calls of the block that is being read are kept back."""
        return self._kept is not None

    @property
    def is_open(self) -> bool:
        """True if a part of a call's arguments was emitted."""
        return self._open is not None

    def declared_schema(self, name: str) -> Mapping[str, Any]:
        """Returns the schema of a tool that the block names, and allows the block a call's length.
        Raises `Malformed` if the tool may not be called."""
        if name not in self.schemas:
            raise Malformed
        self._block.allow_call_length()
        return self.schemas[name]

    def emit(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> None:
        """Emits a whole call; the text read so far belongs to it. Raises `Malformed`,
        `OutputEnded`."""
        if self._are_dropped:
            self._block.pass_call()
            return
        if self._kept is not None:
            self._sink.check_call(name, arguments)
            self._kept.append(ParsedCall(name, arguments, call_id))
            return
        self._sink.emit_call(name, arguments, call_id)
        self._output.has_text = False
        self._block.pass_call()

    def open(
        self, name: str, call_id: str = "", *, before: str = "", is_marked: bool = True
    ) -> OpenCall:
        """Returns a call whose arguments are to be read next; it counts once its `end` is called.
        `before` is content that stands before it. With `is_marked` False it is certain only at the
        end that this is a call, so it is emitted as a whole. Raises `Malformed` if the tool may not
        be called."""
        schema = self.declared_schema(name)
        is_streamed = is_marked and self.are_streamed
        return OpenCall(self, name, schema, call_id, before=before, is_streamed=is_streamed)

    def keep_back(self) -> None:
        """From now on the calls of the block are kept back until `take_kept`."""
        self._kept = []

    def take_kept(self) -> list[ParsedCall]:
        """Returns the calls that were kept back; later ones are emitted again."""
        kept, self._kept = self._kept or [], None
        return kept

    def copy_kept(self) -> list[ParsedCall] | None:
        """Returns the calls that are kept back, for `restore_kept`."""
        return None if self._kept is None else list(self._kept)

    def restore_kept(self, kept: list[ParsedCall] | None) -> None:
        """Drops the calls that were kept back since `copy_kept`."""
        self._kept = kept

    def break_off(self, *, is_ended: bool, is_cut: bool) -> None:
        """Ends the call of which a part was emitted, without an error if the output was cut. Raises
        `OutputEnded`."""
        call, self._open = self._open, None
        if call is not None and not is_cut:
            self._sink.fail((_ENDED if is_ended else _BROKEN).format(call.name))

    # --- for `OpenCall` -----------------------------------------------------------------------

    def earlier_calls(self, name: str) -> list[ArgumentHashes] | None:
        return self._sink.earlier_calls(name)

    def begin(self, call: OpenCall) -> None:
        self._output.emit_beside(call.before)
        self._sink.begin_call(call.name, call.call_id)
        self._open = call
        self._output.has_text = False
        self._block.pass_arguments()

    def add_arguments(self, text: str) -> None:
        self._sink.add_arguments(text)
        block = self._block
        if block.buffer.at - block.passed >= _KEPT_LENGTH:
            block.pass_arguments()

    def end_call(self, call: OpenCall, hashes: ArgumentHashes) -> None:
        self._open = None
        self._block.pass_call()
        self._sink.end_call(call.name, hashes)

    def emit_whole(self, call: OpenCall, arguments: str | Mapping[str, Any]) -> None:
        self._output.emit_beside(call.before)
        self.emit(call.name, arguments, call.call_id)


class _AnyTool(dict[str, Mapping[str, Any]]):
    """A mapping that has every tool name, each with a schema that any arguments fit."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return {}
