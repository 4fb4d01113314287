"""Serializes Anthropic's responses: a message of content blocks, whole or as events.

A block is opened by its first text, so no block is empty. A text delta is `head + JSON of the text
+ tail`; only the index in the head changes from block to block.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from node.dialects.anthropic.errors import error_body
from node.dialects.anthropic.signature import carrying_signature, hashed_signature
from node.dialects.base import Collected, ResponseHead
from node.errors import EngineFault, NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, RowUsage
from node.protocol.event_stream import ANTHROPIC_PING, CONTENT_TYPE, event, event_head
from node.protocol.messages import FinishReason


class ThinkingShown(StrEnum):
    """The form in which the client gets the model's thinking."""

    SHOWN = "shown"
    OMITTED = "omitted"
    """Thinking blocks have no text; their signature carries it."""
    NONE = "none"
    """No thinking blocks are sent."""


_DELTA = event_head("content_block_delta") + b'{"type":"content_block_delta","index":%d,"delta":'
_DELTA_TEXTS = {
    PartKind.CONTENT: b'{"type":"text_delta","text":',
    PartKind.REASONING: b'{"type":"thinking_delta","thinking":',
    PartKind.TOOL_ARGS: b'{"type":"input_json_delta","partial_json":',
}
_SIGNATURE = b'{"type":"signature_delta","signature":'
_TAIL = b"}}\n\n"
_MESSAGE_STOP = event(b'{"type":"message_stop"}', "message_stop")

_encode = msgspec.json.Encoder().encode


class MessageWriter:
    """Serializes one response of `/v1/messages`."""

    keep_alive = ANTHROPIC_PING
    content_type = CONTENT_TYPE

    def __init__(self, head: ResponseHead, thinking: ThinkingShown, *, diagnosed: bool) -> None:
        """`diagnosed`: the request wants the reason of a cache miss, which is always
        "unavailable"."""
        self._head = head
        self._thinking = thinking
        self._diagnosed = diagnosed
        self._accepted = Accepted("", 0, 0)
        self._started = False
        self._called = False
        self._index = -1
        self._open: PartKind | None = None
        """Kind of the parts that continue the open block; `TOOL_ARGS` for a call, None without an
        open block."""
        self._delta_head = b""
        self._thoughts: list[str] = []
        """Reasoning texts of the open block, for its signature."""

    def accepted(self, accepted: Accepted) -> None:
        self._accepted = accepted

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """Implements `Writer.parts`; empty if the client gets none of the parts."""
        pieces: list[bytes] = []
        for part in parts:
            kind = part.kind
            if kind is PartKind.REASONING and self._thinking is ThinkingShown.NONE:
                continue
            if kind is not self._open:
                pieces.append(self._begin(part))
            if kind is PartKind.REASONING:
                self._thoughts.append(part.text)
                if self._thinking is ThinkingShown.OMITTED:
                    continue
            if kind is not PartKind.TOOL_START:
                pieces += (self._delta_head, _encode(part.text), _TAIL)
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        """Implements `Writer.ending`. Raises `EngineFault` if the engine reported no usage."""
        reason, stop = _stop_reason(
            last.finish or FinishReason.STOP, last.stop, called=self._called
        )
        delta: dict[str, object] = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": _usage(last.usage),
        }
        return self._start() + self._end_block() + _event(delta) + _MESSAGE_STOP

    def error(self, error: NodeError) -> bytes:
        return event(error_body(error, "req_" + self._head.request_id), "error")

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        """Implements `Writer.whole`. Raises `EngineFault` if the engine reported no usage."""
        collected = outputs[0]
        reason, stop = _stop_reason(collected.finish, collected.stop, called=bool(collected.calls))
        message = self._message(self._blocks(collected), reason, stop)
        return _encode({**message, "usage": _usage(collected.usage)})

    # --- events ------------------------------------------------------------------------------

    def _start(self) -> bytes:
        """Returns the event `message_start` on the first call, nothing after it."""
        if self._started:
            return b""
        self._started = True
        cached = self._accepted.cached_tokens
        usage = {
            "input_tokens": self._accepted.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": 0,
        }
        message = {**self._message([], None, None), "usage": usage}
        return _event({"type": "message_start", "message": message})

    def _begin(self, part: Part) -> bytes:
        """Returns the end of the open block and the start of the part's own."""
        before = self._start() + self._end_block()
        self._index += 1
        self._open = part.kind
        block: dict[str, object]
        if part.kind is PartKind.TOOL_START:
            self._open = PartKind.TOOL_ARGS
            self._called = True
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
        elif part.kind is PartKind.REASONING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        self._delta_head = _DELTA % self._index + _DELTA_TEXTS[self._open]
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return before + _event(start)

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open is PartKind.REASONING:
            text = _encode(self._signature("".join(self._thoughts)))
            signature = _DELTA % self._index + _SIGNATURE + text + _TAIL
            self._thoughts.clear()
        self._open = None
        return signature + _event({"type": "content_block_stop", "index": self._index})

    # --- message -----------------------------------------------------------------------------

    def _message(
        self, content: list[dict[str, object]], reason: str | None, stop: str | None
    ) -> dict[str, object]:
        """Returns the message without its usage."""
        message: dict[str, object] = {
            "id": "msg_" + self._head.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
        }
        if self._diagnosed:
            message["diagnostics"] = {"cache_miss_reason": {"type": "unavailable"}}
        return message

    def _blocks(self, collected: Collected) -> list[dict[str, object]]:
        """Returns the blocks that a stream of this response would have."""
        blocks: list[dict[str, object]] = []
        texts: list[str] = []

        def end_text() -> None:
            if texts:
                blocks.append({"type": "text", "text": "".join(texts)})
                texts.clear()

        for segment in collected.segments:
            if segment.kind is PartKind.CONTENT:
                texts.append(segment.text)
            elif segment.kind is PartKind.TOOL_START:
                end_text()
                call = {"type": "tool_use", "id": segment.call_id, "name": segment.name}
                # The partial input of a call that was cut off must not look like a complete one.
                text = segment.text if segment.is_whole_call else "{}"
                blocks.append({**call, "input": msgspec.Raw(text.encode())})
            elif self._thinking is not ThinkingShown.NONE:
                end_text()
                shown = segment.text if self._thinking is ThinkingShown.SHOWN else ""
                signature = self._signature(segment.text)
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
        end_text()
        return blocks

    def _signature(self, thought: str) -> str:
        if self._thinking is ThinkingShown.OMITTED:
            return carrying_signature(thought)
        return hashed_signature(thought)


def _stop_reason(finish: FinishReason, stop: str | None, *, called: bool) -> tuple[str, str | None]:
    """Returns (`stop_reason`, `stop_sequence`)."""
    if finish is FinishReason.LENGTH:
        return "max_tokens", None
    if stop is not None:
        return "stop_sequence", stop
    return ("tool_use" if called else "end_turn"), None


def _usage(usage: RowUsage | None) -> dict[str, object]:
    if usage is None:
        raise EngineFault("The engine ended the request without reporting its usage.")
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _event(body: dict[str, object]) -> bytes:
    return event(_encode(body), str(body["type"]))
