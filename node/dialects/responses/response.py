"""Serializes the response object of `/v1/responses` and the items of its output."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from node.dialects.base import ResponseHead, Segment
from node.dialects.fields.field_table import MAX_INT
from node.dialects.fields.logprobs import token_logprobs
from node.dialects.fields.thinking import NO_LIMIT
from node.dialects.responses.items import Item, sealed
from node.dialects.responses.tools import ToolSet
from node.errors import EngineFault, NodeError
from node.ipc.messages import PartKind, RowUsage
from node.protocol.chain.tools import SEARCH
from node.protocol.messages import FinishReason
from node.request import TextRequest

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

STATUS: Mapping[FinishReason, Status] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}
"""Status of a response by the finish reason of its sequence."""

_PREFIX = {PartKind.CONTENT: "msg_", PartKind.REASONING: "rs_", PartKind.TOOL_START: "fc_"}
_CUSTOM_PREFIX, _SEARCH_PREFIX = "ctc_", "tsc_"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """Fields of the request that the response repeats, or that change how it is serialized."""

    previous_id: str | None
    store: bool
    seals_reasoning: bool
    """True: reasoning items have `encrypted_content`."""
    instructions: str | None
    metadata: Mapping[str, str]
    effort: str | None
    summary: str | None
    """The kind of summary that the request sets; with any, reasoning is sent as a summary."""
    tool_choice: object
    """The field as the client sent it."""
    tool_set: ToolSet
    parallel_tool_calls: bool
    """The client's own value; a tool forced by name is called once all the same."""
    text_format: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response, as the response store keeps it."""

    response_id: str
    model: str
    created_s: int
    """Unix time in seconds."""
    previous_id: str | None
    body: bytes
    """The response object as JSON."""
    items: Sequence[Item]
    """The input items of this turn, as they are listed."""


def response_id(head: ResponseHead) -> str:
    return "resp_" + head.request_id


def item_id(head: ResponseHead, prefix: str, index: int) -> str:
    """Returns the id of the output item at `index`; `node.protocol.ids.response_of` is the
    inverse."""
    return f"{prefix}{head.request_id}-{index}"


def input_item_id(head: ResponseHead, index: int) -> str:
    """Returns the id of the input item at `index` of this turn, for an item that came without
    one."""
    return f"msg_{head.request_id}-i{index}"


class ResponseObject:
    """Serializes the response object in each of its states. All fields but a few are constant and
    are encoded once."""

    def __init__(self, request: TextRequest, facts: ResponseFacts, head: ResponseHead) -> None:
        fields = {
            "id": response_id(head),
            "object": "response",
            "created_at": head.created_s,
            "background": False,
            "instructions": facts.instructions,
            "max_output_tokens": request.max_tokens,
            "max_tool_calls": None,
            "metadata": facts.metadata,
            "model": head.model,
            "parallel_tool_calls": facts.parallel_tool_calls,
            "previous_response_id": facts.previous_id,
            "reasoning": _reasoning(request, facts),
            "service_tier": "default",
            "store": facts.store,
            "temperature": request.sampling.temperature,
            "text": {"format": facts.text_format, "verbosity": "medium"},
            "tool_choice": facts.tool_choice,
            "tools": facts.tool_set.shown,
            "top_logprobs": request.logprobs or 0,
            "top_p": request.sampling.top_p,
            "truncation": "disabled",
        }
        # A JSON object without its closing brace, so that more members can follow.
        self._opening = _encode(fields)[:-1]

    def serialize(
        self,
        status: Status,
        output: Sequence[bytes],
        usage: RowUsage | None = None,
        error: NodeError | None = None,
    ) -> bytes:
        """Returns the object as JSON; `output` has the JSON of each item."""
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        completed_s = int(time.time()) if status == "completed" else None
        rest: dict[str, object] = {
            "status": status,
            "completed_at": completed_s,
            "error": None if error is None else _error(error),
            "incomplete_details": incomplete,
        }
        if usage is not None:
            rest["usage"] = _usage(usage)
        pieces = (self._opening, b",", _encode(rest)[1:-1], b',"output":[', b",".join(output))
        return b"".join(pieces) + b"]}"


class ItemSerializer:
    """Serializes output items."""

    def __init__(self, facts: ResponseFacts, head: ResponseHead) -> None:
        self._facts = facts
        self._head = head

    def is_custom(self, segment: Segment) -> bool:
        """True if the segment is a call of a custom tool, whose input is text."""
        return bool(segment.name) and segment.name in self._facts.tool_set.custom

    def is_search(self, segment: Segment) -> bool:
        """True if the segment is a search for tools that the client runs."""
        return segment.name == SEARCH and self._facts.tool_set.searches

    def item_id(self, segment: Segment, index: int) -> str:
        prefix = _CUSTOM_PREFIX if self.is_custom(segment) else _PREFIX[segment.kind]
        prefix = _SEARCH_PREFIX if self.is_search(segment) else prefix
        return item_id(self._head, prefix, index)

    def serialize(
        self, segment: Segment, index: int, status: Status, *, is_new: bool = False
    ) -> bytes:
        """Returns the JSON of the item at `index`; with `is_new`, it has no content yet. A call's
        text is its arguments, or a custom tool's input."""
        item: dict[str, Any] = {"id": self.item_id(segment, index)}
        if segment.kind is PartKind.CONTENT:
            content = [] if is_new else [self.part(segment)]
            item |= {"type": "message", "status": status, "role": "assistant", "content": content}
        elif segment.kind is PartKind.REASONING:
            item |= {"type": "reasoning", "summary": [], "content": [], "status": status}
            if not is_new:
                item["summary" if self.summarizes else "content"] = [self.part(segment)]
            if self._facts.seals_reasoning and not is_new:
                item["encrypted_content"] = sealed(segment.text)
        elif self.is_custom(segment):
            item |= {"type": "custom_tool_call", "call_id": segment.call_id}
            item |= self._names(segment.name) | {"input": segment.text, "status": status}
        elif self.is_search(segment):
            item |= {"type": "tool_search_call", "call_id": segment.call_id, "status": status}
            item |= {"execution": "client", "arguments": _object(segment.text)}
        else:
            item |= {"type": "function_call", "call_id": segment.call_id}
            item |= self._names(segment.name) | {"arguments": segment.text, "status": status}
        return _encode(item)

    @property
    def summarizes(self) -> bool:
        """True if reasoning is sent as a summary."""
        return self._facts.summary is not None

    def part(self, segment: Segment) -> dict[str, object]:
        """Returns the only part of an item of text or reasoning."""
        if segment.kind is PartKind.CONTENT:
            return {
                "type": "output_text",
                "text": segment.text,
                "annotations": [],
                "logprobs": token_logprobs(segment.logprobs),
            }
        kind = "summary_text" if self.summarizes else "reasoning_text"
        return {"type": kind, "text": segment.text}

    def name(self, model_name: str) -> str:
        """Returns the function's name as the client declared it."""
        return self._names(model_name)["name"]

    def _names(self, model_name: str) -> dict[str, str]:
        known = self._facts.tool_set.namespaces.get(model_name)
        if known is None:
            return {"name": model_name}
        return {"namespace": known[0], "name": known[1]}


def _object(text: str) -> object:
    """Returns the arguments of a call; an empty object for one that was cut off."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


def checked_usage(finish: FinishReason, usage: RowUsage | None) -> RowUsage | None:
    """Checks the usage of a sequence that ended with `finish`; None only if it was cancelled
    without any. Raises `EngineFault` if the engine reported no usage."""
    if usage is None and finish is not FinishReason.CANCELLED:
        raise EngineFault("The engine ended the request without reporting its usage.")
    return usage


def _reasoning(request: TextRequest, facts: ResponseFacts) -> dict[str, object]:
    shown: dict[str, object] = {"effort": facts.effort, "summary": facts.summary}
    limit = request.thinking_tokens
    if limit is not None:
        shown["max_tokens"] = NO_LIMIT if limit == MAX_INT else limit
    return shown


def _usage(usage: RowUsage) -> dict[str, object]:
    details = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.reasoning_overflow_tokens:
        details["reasoning_overflow_tokens"] = usage.reasoning_overflow_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": details,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(error: NodeError) -> dict[str, object]:
    # The response object has its own error codes, fewer than the error envelope.
    if error.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.status < 500 else "server_error"
    return {"code": code, "message": error.message}
