"""How an answer of `/v1/responses` is spelled, as events or whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from node.dialects.base import AnswerHead, Collected, Segment
from node.dialects.openai_body import KEEP_ALIVE
from node.dialects.responses_answer import (
    STATUS,
    ItemSpeller,
    ResponseFacts,
    ResponseObject,
    Status,
    StoredResponse,
    input_item_id,
    reasoning_part,
    response_id,
    text_part,
    usage_of,
)
from node.dialects.responses_input import Item, stored_item
from node.errors import NodeError
from node.protocol.messages import FinishReason
from node.request import TextRequest
from node.types import Accepted, Delta, Part, PartKind

_encode = msgspec.json.Encoder().encode

_DELTA = {
    PartKind.CONTENT: "response.output_text.delta",
    PartKind.REASONING: "response.reasoning_text.delta",
    PartKind.TOOL_START: "response.function_call_arguments.delta",
}
_FINAL_EVENT: dict[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    # Clients know no event of its own for it.
    "cancelled": "response.incomplete",
}


class _OpenItem:
    """The item that parts are being added to. A delta is the head, the JSON of the text, the
    middle, the event's number, and the end."""

    __slots__ = ("head", "index", "item_id", "kind", "middle", "segment", "texts")

    def __init__(self, segment: Segment, index: int, item_id: str) -> None:
        self.segment = segment
        self.kind = segment.kind
        self.index = index
        self.item_id = item_id
        self.texts: list[str] = []
        place: dict[str, Any] = {"type": _DELTA[self.kind], "item_id": item_id}
        place["output_index"] = index
        self.middle = b',"sequence_number":'
        if self.kind is not PartKind.TOOL_START:
            place["content_index"] = 0
        if self.kind is PartKind.CONTENT:
            self.middle = b',"logprobs":[],"sequence_number":'
        self.head = _event_head(_DELTA[self.kind]) + _encode(place)[:-1] + b',"delta":'

    def whole(self) -> Segment:
        """What has come of it."""
        self.segment.text = "".join(self.texts)
        return self.segment


class ResponseWriter:
    """The writer of one response. Beyond a `Writer`, `ending` and `whole` take an answer that was
    cancelled; `snapshot` tells the response as far as it is, and `record` what is to be kept."""

    silence = KEEP_ALIVE

    def __init__(
        self, request: TextRequest, facts: ResponseFacts, items: Sequence[Item], head: AnswerHead
    ) -> None:
        self._facts = facts
        self._head = head
        self._input = items
        self._object = ResponseObject(request, facts, head)
        self._items = ItemSpeller(facts, head)
        self._number = 0
        """Of the next event."""
        self._output: list[bytes] = []
        """The JSON of the items that are done."""
        self._open: _OpenItem | None = None
        self._final: bytes | None = None
        self._is_kept = facts.store

    def accepted(self, accepted: Accepted) -> None:
        """Usage is told at the end only."""

    def parts(self, parts: Sequence[Part]) -> bytes:
        pieces: list[bytes] = []
        for part in parts:
            item = self._open
            kind = part.kind
            if kind is PartKind.TOOL_START:
                self._begin(pieces, Segment(kind, "", part.name, part.call_id))
                continue
            if item is None or (kind is not item.kind and kind is not PartKind.TOOL_ARGS):
                item = self._begin(pieces, Segment(kind, ""))
            item.texts.append(part.text)
            pieces += (item.head, _encode(part.text), item.middle, b"%d}\n\n" % self._number)
            self._number += 1
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        finish = last.finish or FinishReason.STOP
        usage = usage_of(finish, last.usage)
        pieces: list[bytes] = []
        self._create(pieces)
        status = STATUS[finish]
        self._end_item(pieces, "completed" if status == "completed" else "incomplete")
        self._final = self._object.spell(status, self._output, usage)
        self._add(pieces, _FINAL_EVENT[status], {"response": msgspec.Raw(self._final)})
        return b"".join(pieces)

    def error(self, error: NodeError) -> bytes:
        pieces: list[bytes] = []
        if not self._number:
            fields = {"code": error.code, "message": error.message, "param": error.param}
            # Clients look for these in either place.
            self._add(pieces, "error", {**fields, "error": {"type": error.kind, **fields}})
            return b"".join(pieces)
        self._end_item(pieces, "incomplete")
        self._final = self._object.spell("failed", self._output, error=error)
        self._add(pieces, _FINAL_EVENT["failed"], {"response": msgspec.Raw(self._final)})
        return b"".join(pieces)

    def whole(self, collected: Collected) -> bytes:
        status = STATUS[collected.finish]
        usage = usage_of(collected.finish, collected.usage)
        last = len(collected.segments) - 1
        for index, segment in enumerate(collected.segments):
            is_cut = status != "completed" and index == last
            is_cut = is_cut and segment.kind is not PartKind.TOOL_START
            state: Status = "incomplete" if is_cut else "completed"
            self._output.append(self._items.spell(segment, index, state))
        self._final = self._object.spell(status, self._output, usage)
        return self._final

    def snapshot(self) -> bytes:
        """The response object as far as it is, JSON."""
        return self._final if self._final is not None else self._so_far("in_progress")

    def cancelled(self) -> bytes:
        """As `snapshot`, for who has just cancelled the response: nothing more will come of it."""
        return self._final if self._final is not None else self._so_far("cancelled")

    def forget(self) -> None:
        """Nothing of the response is to be kept."""
        self._is_kept = False

    def record(self) -> StoredResponse | None:
        """What is to be kept of a response that has ended; None for one that has not, and where
        nothing is to be kept."""
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
            ],
        )

    def _so_far(self, status: Status) -> bytes:
        output, item = list(self._output), self._open
        if item is not None:
            state: Status = "in_progress" if status == "in_progress" else "incomplete"
            output.append(self._items.spell(item.whole(), item.index, state))
        return self._object.spell(status, output)

    def _create(self, pieces: list[bytes]) -> None:
        """The events before the first item, once."""
        if not self._number:
            response = msgspec.Raw(self._object.spell("in_progress", ()))
            self._add(pieces, "response.created", {"response": response})
            self._add(pieces, "response.in_progress", {"response": response})

    def _begin(self, pieces: list[bytes], segment: Segment) -> _OpenItem:
        self._create(pieces)
        self._end_item(pieces, "completed")
        index = len(self._output)
        item = _OpenItem(segment, index, self._items.item_id(segment.kind, index))
        self._open = item
        new = msgspec.Raw(self._items.spell(segment, index, "in_progress", is_new=True))
        self._add(pieces, "response.output_item.added", {"output_index": index, "item": new})
        if segment.kind is not PartKind.TOOL_START:
            fields = _content_place(item) | {"part": _part(segment)}
            self._add(pieces, "response.content_part.added", fields)
        return item

    def _end_item(self, pieces: list[bytes], status: Status) -> None:
        item = self._open
        if item is None:
            return
        self._open = None
        segment = item.whole()
        if segment.kind is PartKind.TOOL_START:
            # Only whole calls are told.
            status = "completed"
            call = {
                "item_id": item.item_id,
                "output_index": item.index,
                "name": self._items.name(segment.name),
                "arguments": segment.text,
            }
            self._add(pieces, "response.function_call_arguments.done", call)
        else:
            self._end_content(pieces, item, segment)
        done = self._items.spell(segment, item.index, status)
        self._output.append(done)
        fields = {"output_index": item.index, "item": msgspec.Raw(done)}
        self._add(pieces, "response.output_item.done", fields)

    def _end_content(self, pieces: list[bytes], item: _OpenItem, segment: Segment) -> None:
        place = _content_place(item)
        if segment.kind is PartKind.CONTENT:
            fields = place | {"text": segment.text, "logprobs": []}
            self._add(pieces, "response.output_text.done", fields)
        else:
            fields = place | {"text": segment.text}
            self._add(pieces, "response.reasoning_text.done", fields)
        self._add(pieces, "response.content_part.done", place | {"part": _part(segment)})

    def _add(self, pieces: list[bytes], kind: str, fields: dict[str, Any]) -> None:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        pieces += (_event_head(kind), _encode(event), b"\n\n")


def _event_head(kind: str) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: "


def _part(segment: Segment) -> dict[str, object]:
    spell = text_part if segment.kind is PartKind.CONTENT else reasoning_part
    return spell(segment.text)


def _content_place(item: _OpenItem) -> dict[str, Any]:
    return {"item_id": item.item_id, "output_index": item.index, "content_index": 0}
