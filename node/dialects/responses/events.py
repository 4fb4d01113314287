"""Serializes a response of `/v1/responses`, as events or whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from node.dialects.base import Collected, ResponseHead, Segment
from node.dialects.fields.custom_input import CustomInputReader, input_of
from node.dialects.fields.logprobs import token_logprobs
from node.dialects.responses.items import Item, is_hosted, stored_item
from node.dialects.responses.response import (
    STATUS,
    ItemSerializer,
    ResponseFacts,
    ResponseObject,
    Status,
    StoredResponse,
    checked_usage,
    input_item_id,
    response_id,
)
from node.errors import NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, TokenLogprob
from node.protocol.error_envelopes import response_error
from node.protocol.event_stream import CONTENT_TYPE, KEEP_ALIVE, event, event_head
from node.protocol.messages import FinishReason
from node.request import TextRequest

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _PartEvents:
    """Names of the events of an item's part and of the text in it."""

    part: str
    text: str
    index: str
    """Name of the field with the part's index, which is always 0."""


_CONTENT = _PartEvents("response.content_part", "response.output_text", "content_index")
_REASONING = _PartEvents("response.content_part", "response.reasoning_text", "content_index")
_SUMMARY = _PartEvents(
    "response.reasoning_summary_part", "response.reasoning_summary_text", "summary_index"
)
_ARGUMENTS = "response.function_call_arguments"
_INPUT = "response.custom_tool_call_input"
_NUMBER = b',"sequence_number":'

_FINAL_EVENT: dict[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    # Clients know no event type of its own for a cancelled response.
    "cancelled": "response.incomplete",
}


class _OpenItem:
    """The output item that parts are being added to. A delta is the head, the JSON of the text, the
    middle, the event's number, and the end."""

    __slots__ = (
        "events",
        "head",
        "index",
        "input",
        "is_silent",
        "kind",
        "middle",
        "place",
        "segment",
        "texts",
    )

    def __init__(
        self,
        segment: Segment,
        index: int,
        item_id: str,
        events: _PartEvents | None,
        *,
        is_custom: bool,
        is_silent: bool,
    ) -> None:
        self.segment = segment
        self.kind = segment.kind
        self.index = index
        self.events = events
        """None for a call, which has no parts."""
        self.input = CustomInputReader() if is_custom else None
        """Reads the input of a custom tool's call; None for any other item."""
        self.is_silent = is_silent
        """True: the item has events for its beginning and its end only."""
        self.texts: list[str] = []
        self.place: dict[str, Any] = {"item_id": item_id, "output_index": index}
        if events is not None:
            self.place[events.index] = 0
        is_content = self.kind is PartKind.CONTENT
        self.middle = b',"logprobs":[]' + _NUMBER if is_content else _NUMBER
        delta = (self.call_event if events is None else events.text) + ".delta"
        self.head = event_head(delta) + _encode({"type": delta, **self.place})[:-1] + b',"delta":'

    @property
    def call_event(self) -> str:
        """Prefix of the names of events that carry a call's text."""
        return _ARGUMENTS if self.input is None else _INPUT

    def add_logprobs(self, logprobs: Sequence[TokenLogprob]) -> bytes:
        """Records log probabilities and returns the middle of the delta that carries them."""
        self.segment.logprobs += logprobs
        return b',"logprobs":' + _encode(token_logprobs(logprobs)) + _NUMBER

    @property
    def is_whole_call(self) -> bool:
        """True if the call's arguments are complete."""
        return self.segment.is_whole_call if self.input is None else self.input.is_whole

    def whole(self) -> Segment:
        """Returns the item's segment with all text received so far."""
        self.segment.text = "".join(self.texts)
        return self.segment


class ResponseWriter:
    """Writes one response. Beyond `Writer`, `ending` and `whole` accept a cancelled response,
    `snapshot` returns the response so far, and `record` what the response store keeps."""

    keep_alive = KEEP_ALIVE
    content_type = CONTENT_TYPE

    def __init__(
        self, request: TextRequest, facts: ResponseFacts, items: Sequence[Item], head: ResponseHead
    ) -> None:
        self._facts = facts
        self._head = head
        self._input = items
        self._object = ResponseObject(request, facts, head)
        self._items = ItemSerializer(facts, head)
        self._number = 0
        """Sequence number of the next event."""
        self._output: list[bytes] = []
        """The JSON of the finished items."""
        self._open: _OpenItem | None = None
        self._final: bytes | None = None
        self._is_kept = facts.store

    def accepted(self, accepted: Accepted) -> None:
        """Does nothing: usage is sent in the final event only."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        pieces: list[bytes] = []
        for part in parts:
            item = self._open
            kind = part.kind
            if kind is PartKind.TOOL_START:
                self._begin(pieces, Segment(kind, "", part.name, part.call_id))
                continue
            if item is None or (kind is not item.kind and kind is not PartKind.TOOL_ARGS):
                item = self._begin(pieces, Segment(kind, ""))
            text = part.text if item.input is None else item.input.feed(part.text)
            if item.is_silent:
                item.texts.append(text)
            elif text:
                self._add_text(pieces, item, text, part.logprobs)
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        finish = last.finish or FinishReason.STOP
        usage = checked_usage(finish, last.usage)
        pieces: list[bytes] = []
        self._create(pieces)
        status = STATUS[finish]
        self._end_item(pieces, "completed" if status == "completed" else "incomplete")
        self._final = self._object.serialize(status, self._output, usage)
        self._add(pieces, _FINAL_EVENT[status], {"response": msgspec.Raw(self._final)})
        return b"".join(pieces)

    def error(self, error: NodeError) -> bytes:
        pieces: list[bytes] = []
        if not self._number:
            fields = {"code": error.code, "message": error.message, "param": error.param}
            self._number += 1
            return event(response_error(error.kind, fields, 0), "error")
        self._end_item(pieces, "incomplete")
        self._final = self._object.serialize("failed", self._output, error=error)
        self._add(pieces, _FINAL_EVENT["failed"], {"response": msgspec.Raw(self._final)})
        return b"".join(pieces)

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        collected = outputs[0]
        status = STATUS[collected.finish]
        usage = checked_usage(collected.finish, collected.usage)
        last = len(collected.segments) - 1
        for index, segment in enumerate(collected.segments):
            is_cut = status != "completed" and index == last
            if segment.kind is PartKind.TOOL_START:
                is_cut = is_cut and not segment.is_whole_call
            if self._items.is_custom(segment):
                segment.text = input_of(segment.text)
            state: Status = "incomplete" if is_cut else "completed"
            self._output.append(self._items.serialize(segment, index, state))
        self._final = self._object.serialize(status, self._output, usage)
        return self._final

    def snapshot(self) -> bytes:
        """Returns the response object so far as JSON."""
        return self._final if self._final is not None else self._so_far("in_progress")

    def cancelled(self) -> bytes:
        """Returns the response object for the client that has just cancelled the response."""
        return self._final if self._final is not None else self._so_far("cancelled")

    def forget(self) -> None:
        """Makes `record` return None: the response is not stored."""
        self._is_kept = False

    def record(self) -> StoredResponse | None:
        """Returns what the response store keeps; None for a response that has not ended, or that is
        not to be stored."""
        if self._final is None or not self._is_kept:
            return None
        return StoredResponse(
            response_id(self._head),
            self._head.model,
            self._head.created_s,
            self._facts.previous_id,
            self._final,
            [
                stored_item(item, input_item_id(self._head, index))
                for index, item in enumerate(self._input)
                if not is_hosted(item)
            ],
        )

    def _so_far(self, status: Status) -> bytes:
        output, item = list(self._output), self._open
        if item is not None:
            state: Status = "in_progress" if status == "in_progress" else "incomplete"
            output.append(self._items.serialize(item.whole(), item.index, state))
        return self._object.serialize(status, output)

    def _create(self, pieces: list[bytes]) -> None:
        """Adds the events before the first item, once."""
        if not self._number:
            response = msgspec.Raw(self._object.serialize("in_progress", ()))
            self._add(pieces, "response.created", {"response": response})
            self._add(pieces, "response.in_progress", {"response": response})

    def _add_text(
        self,
        pieces: list[bytes],
        item: _OpenItem,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        item.texts.append(text)
        middle = item.add_logprobs(logprobs) if logprobs else item.middle
        pieces += (item.head, _encode(text), middle, b"%d}\n\n" % self._number)
        self._number += 1

    def _begin(self, pieces: list[bytes], segment: Segment) -> _OpenItem:
        self._create(pieces)
        self._end_item(pieces, "completed")
        index = len(self._output)
        events = self._part_events(segment.kind)
        item = _OpenItem(
            segment,
            index,
            self._items.item_id(segment, index),
            events,
            is_custom=self._items.is_custom(segment),
            is_silent=self._items.is_search(segment),
        )
        self._open = item
        new = msgspec.Raw(self._items.serialize(segment, index, "in_progress", is_new=True))
        self._add(pieces, "response.output_item.added", {"output_index": index, "item": new})
        if events is not None:
            fields = item.place | {"part": self._items.part(segment)}
            self._add(pieces, events.part + ".added", fields)
        return item

    def _part_events(self, kind: PartKind) -> _PartEvents | None:
        if kind is PartKind.TOOL_START:
            return None
        if kind is PartKind.CONTENT:
            return _CONTENT
        return _SUMMARY if self._items.summarizes else _REASONING

    def _end_item(self, pieces: list[bytes], status: Status) -> None:
        item = self._open
        if item is None:
            return
        self._open = None
        if item.input is not None and (rest := item.input.rest()):
            self._add_text(pieces, item, rest)
        segment = item.whole()
        if item.events is not None:
            self._end_part(pieces, item, item.events, status)
        elif status == "completed" or item.is_whole_call:
            status = "completed"
            self._end_call(pieces, item)
        else:
            # Clients run a call once its item is done, whatever its status.
            self._output.append(self._items.serialize(segment, item.index, status))
            return
        done = self._items.serialize(segment, item.index, status)
        self._output.append(done)
        fields = {"output_index": item.index, "item": msgspec.Raw(done)}
        self._add(pieces, "response.output_item.done", fields)

    def _end_call(self, pieces: list[bytes], item: _OpenItem) -> None:
        text = item.segment.text
        call = {"name": self._items.name(item.segment.name), "arguments": text}
        fields = {"input": text} if item.input is not None else call
        if not item.is_silent:
            self._add(pieces, item.call_event + ".done", item.place | fields)

    def _end_part(
        self, pieces: list[bytes], item: _OpenItem, events: _PartEvents, status: Status
    ) -> None:
        text = item.place | {"text": item.segment.text}
        if item.kind is PartKind.CONTENT:
            text["logprobs"] = token_logprobs(item.segment.logprobs)
        self._add(pieces, events.text + ".done", text)
        part = item.place | {"part": self._items.part(item.segment)}
        if events is _SUMMARY and status == "incomplete":
            part["status"] = status
        self._add(pieces, events.part + ".done", part)

    def _add(self, pieces: list[bytes], kind: str, fields: dict[str, Any]) -> None:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        pieces.append(event(_encode(data), kind))
