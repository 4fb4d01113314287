"""OpenAI's chat: how an answer is spelled, in chunks or whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from node.dialects.base import AnswerHead, Collected, Segment
from node.dialects.logprobs import token_logprobs
from node.dialects.openai_body import DONE, KEEP_ALIVE, usage_fields
from node.dialects.openai_errors import error_body
from node.errors import NodeError
from node.protocol.messages import FinishReason
from node.types import Accepted, Delta, Part, PartKind, TokenLogprob

ReasoningField = Literal["reasoning_content", "reasoning", "both"]

_FIELDS: dict[ReasoningField, tuple[str, ...]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}
_encode = msgspec.json.Encoder().encode
# Looked up once: an enum's members are slow to reach, for what a chunk may cost.
_CONTENT, _REASONING, _TOOL_START = PartKind.CONTENT, PartKind.REASONING, PartKind.TOOL_START


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """What of an answer's spelling the body asked for."""

    include_usage: bool = False
    """A stream ends with a chunk of usage."""
    reasoning: ReasoningField | None = "reasoning_content"
    """None: reasoning is not sent."""
    is_legacy: bool = False
    """The body declared `functions`: a call is a `function_call`, and there is one at most."""
    choices: int = 1
    has_logprobs: bool = False


class _Choice:
    """What stands before the texts of one choice's chunks; its first one has the role too."""

    def __init__(self, chunk: bytes, index: int, reasoning: Sequence[str]) -> None:
        self.has_opened = False
        self.has_called = False
        self._start = chunk + b'{"index":%d,"delta":{' % index
        self._reasoning_names = [name.encode() for name in reasoning]
        self._set_heads(b'"role":"assistant",')

    def open(self) -> None:
        """The first chunk, with the role, has been spelled."""
        self.has_opened = True
        self._set_heads(b"")

    def _set_heads(self, role: bytes) -> None:
        self.delta = self._start + role
        self.content = self.delta + b'"content":'
        self.reasoning = tuple(
            (b"," if at else self.delta) + b'"%b":' % name
            for at, name in enumerate(self._reasoning_names)
        )


class ChatAnswer:
    """The writer of a chat's answer. A chunk is the head of its kind, the JSON of the text, and
    the tail."""

    silence = KEEP_ALIVE

    def __init__(self, head: AnswerHead, style: ChatStyle) -> None:
        self._style = style
        self._fields = {
            "id": "chatcmpl-" + head.request_id,
            "object": "chat.completion",
            "created": head.created_s,
            "model": head.model,
        }
        chunk = _encode({**self._fields, "object": "chat.completion.chunk"})
        # A JSON object without its closing brace, so that choices can follow.
        self._chunk = b"data: " + chunk[:-1] + b',"choices":['
        self._end = (b'],"usage":null}' if style.include_usage else b"]}") + b"\n\n"
        self._tail = b'},"logprobs":null,"finish_reason":null}' + self._end
        self._reasoning = _FIELDS[style.reasoning] if style.reasoning else ()
        self._choices = [
            _Choice(self._chunk, index, self._reasoning) for index in range(style.choices)
        ]
        self._opening = self._open_all() if style.choices > 1 else b""

    def accepted(self, accepted: Accepted) -> None:
        """A chat's stream tells usage at its end only."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """As `Writer.parts`; empty for reasoning that is not sent."""
        pieces: list[bytes] = []
        told = self._choices[choice]
        for part in parts:
            if part.kind is _CONTENT:
                tail = self._logprobs_tail(part.logprobs) if part.logprobs else self._tail
                pieces += (told.content, _encode(part.text), tail)
            elif part.kind is not _REASONING:
                pieces += (told.delta, self._call(part, told), self._tail)
            elif self._reasoning:
                text = _encode(part.text)
                for head in told.reasoning:
                    pieces += (head, text)
                pieces.append(self._tail)
            if pieces and not told.has_opened:
                told.open()
        if pieces and self._opening:
            pieces.insert(0, self._take_opening())
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        pieces = [self._take_opening()]
        told = self._choices[last.choice]
        if not told.has_opened:
            pieces += (told.content, b'""', self._tail)
            told.open()
        reason = self._finish(last.finish or FinishReason.STOP, is_call=told.has_called)
        pieces += (told.delta, b'},"logprobs":null,"finish_reason":"', reason.encode(), b'"}')
        pieces.append(self._end)
        if not last.is_last:
            return b"".join(pieces)
        if self._style.include_usage and last.usage is not None:
            usage = _encode(usage_fields(last.usage))
            pieces += (self._chunk, b'],"usage":', usage, b"}\n\n")
        pieces.append(DONE)
        return b"".join(pieces)

    def error(self, error: NodeError) -> bytes:
        return b"data: " + error_body(error) + b"\n\n"

    def whole(self, answers: Sequence[Collected]) -> bytes:
        """As `Writer.whole`. Raises `EngineFault` without usage."""
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        return _encode(
            {**self._fields, "choices": choices, "usage": usage_fields(answers[0].usage)}
        )

    def _open_all(self) -> bytes:
        """The first chunks of several choices, in their order: clients put choices together by
        when they come."""
        pieces: list[bytes] = []
        for told in self._choices:
            pieces += (told.content, b'""', self._tail)
            told.open()
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

    def _call(self, part: Part, told: _Choice) -> bytes:
        """The members of a delta that begins a call, or goes on with its arguments."""
        if part.kind is _TOOL_START:
            told.has_called = True
            function = b'{"name":%b,"arguments":""}' % _encode(part.name)
            opening = b'"id":%b,"type":"function",' % _encode(part.call_id)
        else:
            function = b'{"arguments":%b}' % _encode(part.text)
            opening = b""
        if self._style.is_legacy:
            return b'"function_call":' + function
        return b'"tool_calls":[{"index":%d,%b"function":%b}]' % (part.index, opening, function)

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
        functions = [{"name": call.name, "arguments": call.text} for call in calls]
        if functions and self._style.is_legacy:
            message["function_call"] = functions[0]
        elif functions:
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
        return message


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    return {"content": token_logprobs(tokens), "refusal": None}
