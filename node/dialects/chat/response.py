"""Serializes the responses of OpenAI's chat API, streamed and whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from node.dialects.base import Collected, ResponseHead, Segment
from node.dialects.fields.custom_input import CustomInputReader, input_of
from node.dialects.fields.logprobs import token_logprobs
from node.dialects.fields.openai_body import usage_fields
from node.errors import NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, TokenLogprob
from node.protocol.error_envelopes import openai_envelope
from node.protocol.event_stream import CONTENT_TYPE, DONE, KEEP_ALIVE, event, event_head
from node.protocol.messages import FinishReason

ReasoningField = Literal["reasoning_content", "reasoning", "both"]

_FIELDS: dict[ReasoningField, tuple[str, ...]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}
_encode = msgspec.json.Encoder().encode
# Bound once: access to an enum's members is slow compared with the cost of a chunk.
_CONTENT, _REASONING, _TOOL_START = PartKind.CONTENT, PartKind.REASONING, PartKind.TOOL_START


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """Options of the request that change how its response is serialized."""

    include_usage: bool = False
    """True: the stream ends with a chunk that has the usage."""
    reasoning: ReasoningField | None = "reasoning_content"
    """None: reasoning is not sent."""
    is_legacy: bool = False
    """True: the request declared `functions`. A call is then a `function_call`, and a response has
    at most one."""
    choices: int = 1
    has_logprobs: bool = False
    custom: frozenset[str] = frozenset()
    """Names of custom tools, whose calls carry text instead of JSON arguments."""


class _ChatChoice:
    """The bytes that begin each chunk of one choice; its first chunk also has the role."""

    def __init__(self, chunk: bytes, index: int, reasoning: Sequence[str]) -> None:
        self.has_opened = False
        self.has_called = False
        self.input: CustomInputReader | None = None
        """Reads the input of the call that began last, if that calls a custom tool."""
        self.call_index = 0
        """Index of the call that began last."""
        self._start = chunk + b'{"index":%d,"delta":{' % index
        self._reasoning_names = [name.encode() for name in reasoning]
        self._set_heads(b'"role":"assistant",')

    def open(self) -> None:
        """Call this once the first chunk, with the role, has been serialized."""
        self.has_opened = True
        self._set_heads(b"")

    def _set_heads(self, role: bytes) -> None:
        self.delta = self._start + role
        self.content = self.delta + b'"content":'
        self.reasoning = tuple(
            (b"," if at else self.delta) + b'"%b":' % name
            for at, name in enumerate(self._reasoning_names)
        )


class ChatWriter:
    """Serializes the response to a chat request. A chunk is the prefix of its kind, the text as
    JSON, and the suffix."""

    keep_alive = KEEP_ALIVE
    content_type = CONTENT_TYPE

    def __init__(self, head: ResponseHead, style: ChatStyle) -> None:
        self._style = style
        self._fields = head.completion("chatcmpl-", "chat.completion")
        chunk = _encode({**self._fields, "object": "chat.completion.chunk"})
        # A JSON object without its closing brace, so that choices can follow.
        self._chunk = event_head() + chunk[:-1] + b',"choices":['
        self._end = (b'],"usage":null}' if style.include_usage else b"]}") + b"\n\n"
        self._tail = b'},"logprobs":null,"finish_reason":null}' + self._end
        self._reasoning = _FIELDS[style.reasoning] if style.reasoning else ()
        self._choices = [
            _ChatChoice(self._chunk, index, self._reasoning) for index in range(style.choices)
        ]
        self._opening = self._open_all() if style.choices > 1 else b""

    def accepted(self, accepted: Accepted) -> None:
        """Does nothing: a chat stream has its usage in the last chunk only."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """Implements `Writer.parts`; empty for reasoning that is not sent."""
        pieces: list[bytes] = []
        target = self._choices[choice]
        for part in parts:
            if part.kind is _CONTENT:
                tail = self._logprobs_tail(part.logprobs) if part.logprobs else self._tail
                pieces += (target.content, _encode(part.text), tail)
            elif part.kind is not _REASONING:
                pieces += self._call(part, target)
            elif self._reasoning:
                text = _encode(part.text)
                for head in target.reasoning:
                    pieces += (head, text)
                pieces.append(self._tail)
            if pieces and not target.has_opened:
                target.open()
        if pieces and self._opening:
            pieces.insert(0, self._take_opening())
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        pieces = [self._take_opening()]
        target = self._choices[last.choice]
        if not target.has_opened:
            pieces += (target.content, b'""', self._tail)
            target.open()
        pieces += self._rest(target)
        reason = self._finish(last.finish or FinishReason.STOP, is_call=target.has_called)
        pieces += (target.delta, b'},"logprobs":null,"finish_reason":"', reason.encode(), b'"}')
        pieces.append(self._end)
        if not last.is_last:
            return b"".join(pieces)
        if self._style.include_usage and last.usage is not None:
            usage = _encode(usage_fields(last.usage))
            pieces += (self._chunk, b'],"usage":', usage, b"}\n\n")
        pieces.append(DONE)
        return b"".join(pieces)

    def error(self, error: NodeError) -> bytes:
        return event(openai_envelope(error))

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        """Implements `Writer.whole`. Raises `EngineFault` if the engine reported no usage."""
        choices = [self._whole_choice(index, output) for index, output in enumerate(outputs)]
        return _encode(
            {**self._fields, "choices": choices, "usage": usage_fields(outputs[0].usage)}
        )

    def _open_all(self) -> bytes:
        """Returns the first chunk of every choice, in order of index: clients order choices by the
        arrival of their first chunks."""
        pieces: list[bytes] = []
        for target in self._choices:
            pieces += (target.content, b'""', self._tail)
            target.open()
        return b"".join(pieces)

    def _take_opening(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening

    def _whole_choice(self, index: int, collected: Collected) -> dict[str, object]:
        calls = collected.calls
        return {
            "index": index,
            "message": self._message(collected, calls),
            "logprobs": _logprobs(collected.logprobs) if self._style.has_logprobs else None,
            "finish_reason": self._finish(collected.finish, is_call=bool(calls)),
        }

    def _logprobs_tail(self, tokens: Sequence[TokenLogprob]) -> bytes:
        return b'},"logprobs":%b,"finish_reason":null}' % _encode(_logprobs(tokens)) + self._end

    def _call(self, part: Part, target: _ChatChoice) -> list[bytes]:
        """Returns the chunks that begin a tool call or continue one."""
        if part.kind is _TOOL_START:
            rest = self._rest(target)
            target.has_called, target.call_index = True, part.index
            target.input = CustomInputReader() if part.name in self._style.custom else None
            return [*rest, target.delta, self._opening_of(part, target), self._tail]
        if target.input is not None:
            return self._input(target.input.feed(part.text), target)
        function = b'{"arguments":%b}' % _encode(part.text)
        if self._style.is_legacy:
            return [target.delta, b'"function_call":', function, self._tail]
        call = b'"tool_calls":[{"index":%d,"function":%b}]' % (part.index, function)
        return [target.delta, call, self._tail]

    def _opening_of(self, part: Part, target: _ChatChoice) -> bytes:
        """Returns the members of the delta that begins a call."""
        name = _encode(part.name)
        if self._style.is_legacy:
            return b'"function_call":{"name":%b,"arguments":""}' % name
        if target.input is None:
            kind = b'"type":"function","function":{"name":%b,"arguments":""}' % name
        else:
            kind = b'"type":"custom","custom":{"name":%b,"input":""}' % name
        opening = part.index, _encode(part.call_id), kind
        return b'"tool_calls":[{"index":%d,"id":%b,%b}]' % opening

    def _input(self, text: str, target: _ChatChoice) -> list[bytes]:
        """Returns the chunk for more input of a custom tool."""
        if not text:
            return []
        custom = b'{"input":%b}' % _encode(text)
        call = b'"tool_calls":[{"index":%d,"custom":%b}]' % (target.call_index, custom)
        return [target.delta, call, self._tail]

    def _rest(self, target: _ChatChoice) -> list[bytes]:
        """Returns the chunk for the input that is still buffered when a custom tool's call ends."""
        reader, target.input = target.input, None
        return [] if reader is None else self._input(reader.rest(), target)

    def _finish(self, finish: FinishReason, *, is_call: bool) -> str:
        if not is_call or finish is not FinishReason.STOP:
            return finish.value
        return "function_call" if self._style.is_legacy else "tool_calls"

    def _message(self, collected: Collected, calls: Sequence[Segment]) -> dict[str, object]:
        text = collected.text(PartKind.CONTENT)
        message: dict[str, object] = {"role": "assistant"}
        message["content"] = None if calls and not text else text
        message["refusal"] = None
        reasoning = collected.text(PartKind.REASONING)
        if reasoning:
            message |= dict.fromkeys(self._reasoning, reasoning)
        if calls and self._style.is_legacy:
            message["function_call"] = _function(calls[0])
        elif calls:
            message["tool_calls"] = [self._whole_call(call) for call in calls]
        return message

    def _whole_call(self, call: Segment) -> dict[str, object]:
        if call.name in self._style.custom:
            custom = {"name": call.name, "input": input_of(call.text)}
            return {"id": call.call_id, "type": "custom", "custom": custom}
        return {"id": call.call_id, "type": "function", "function": _function(call)}


def _function(call: Segment) -> dict[str, object]:
    return {"name": call.name, "arguments": call.text}


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    return {"content": token_logprobs(tokens), "refusal": None}
