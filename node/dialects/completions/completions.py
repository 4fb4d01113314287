"""OpenAI's completions API: parses its bodies and serializes its responses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from pydantic import BeforeValidator, Field

from node.dialects.base import Collected, ResponseHead
from node.dialects.fields.constraints import read_constraint
from node.dialects.fields.field_table import (
    MAX_INT,
    FieldTable,
    Refusal,
    absent,
    falsy,
    off,
    on,
    only,
)
from node.dialects.fields.logprobs import TextOffsets
from node.dialects.fields.openai_body import (
    NOTES,
    REFUSED,
    OpenAIBody,
    includes_usage,
    usage_fields,
)
from node.dialects.fields.refusals import BUDGETS_ELSEWHERE, IGNORED, renamed
from node.dialects.fields.sampling import Count, sampling_params, stop_strings, token_limit
from node.dialects.fields.thinking import THINKING_FIELDS
from node.errors import BadRequest, NodeError, Unsupported
from node.ipc.messages import Accepted, Delta, Part
from node.protocol.error_envelopes import openai_envelope
from node.protocol.event_stream import CONTENT_TYPE, DONE, KEEP_ALIVE, event, event_head
from node.protocol.messages import FinishReason
from node.request import TextRequest

_ONLY_CHATS = "Only /v1/chat/completions has messages and tools."
_BUDGETS = (*THINKING_FIELDS, *BUDGETS_ELSEWHERE)
_NO_TEMPLATE = "A prompt is not rendered by a chat template."

_encode = msgspec.json.Encoder().encode


# `false` is how a chat request turns logprobs off.
_LogprobCount = Annotated[
    Annotated[int, Field(ge=0, le=5)] | None,
    BeforeValidator(lambda value: None if value is False else value),
]


class CompletionBody(OpenAIBody):
    prompt: object
    logprobs: _LogprobCount = None
    best_of: Count | None = None


COMPLETIONS = FieldTable(
    body=CompletionBody,
    notes={
        **NOTES,
        "prompt": "A text or a list of token ids, or a list of one of these.",
        "logprobs": (
            "0 to 5: each token's log probability, and those of the likeliest tokens, in the "
            "distribution that was sampled from. `text_offset` counts characters of the response."
        ),
        "best_of": "1, or equal to `n`: all choices that are sampled are sent.",
    },
    refused={
        **REFUSED,
        **{name: Refusal(absent, "null", _NO_TEMPLATE) for name in _BUDGETS},
        "separate_reasoning": Refusal(
            off, "null or false", "A completion's text has all of the model's output."
        ),
        "top_logprobs": Refusal(falsy, "null or 0", "top_logprobs is called logprobs here."),
        "tools": Refusal(falsy, "null or empty", _ONLY_CHATS),
        "tool_choice": Refusal(only("none", "auto"), "null, none or auto", _ONLY_CHATS),
        "functions": Refusal(falsy, "null or empty", _ONLY_CHATS),
        "function_call": Refusal(only("none", "auto"), "null, none or auto", _ONLY_CHATS),
        "parallel_tool_calls": Refusal(on, "null or true", _ONLY_CHATS),
        "messages": Refusal(falsy, "null or empty", _ONLY_CHATS),
        "reasoning_effort": Refusal(absent, "null", _NO_TEMPLATE),
        "reasoning": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "enable_thinking": Refusal(absent, "null", _NO_TEMPLATE),
        "thinking": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "output_config": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "include_reasoning": Refusal(
            on, "null or true", "A completion's text has all of the model's output."
        ),
        "chat_template_kwargs": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "continue_final_message": Refusal(off, "null or false", _NO_TEMPLATE),
        "add_generation_prompt": Refusal(off, "null or false", _NO_TEMPLATE),
        "input": renamed("input", "prompt"),
        "instructions": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "system": Refusal(falsy, "null or empty", _NO_TEMPLATE),
        "text": renamed("text", "response_format"),
        "add_special_tokens": Refusal(on, "null or true"),
    },
    ignored=IGNORED,
)


@dataclass(frozen=True, slots=True)
class CompletionStyle:
    """Options of the request that change how its response is serialized."""

    include_usage: bool = False
    """True: the stream ends with a chunk that has the usage."""
    choices: int = 1
    has_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A parsed completion request."""

    request: TextRequest
    style: CompletionStyle

    def writer(self, head: ResponseHead) -> "CompletionWriter":
        return CompletionWriter(head, self.style)


def read_completion(body: bytes) -> CompletionRequest:
    """Parses a request body. Raises `BadRequest` or `Unsupported`."""
    parsed = COMPLETIONS.read(body)
    usage = includes_usage(parsed)
    choices = parsed.n or 1
    if parsed.best_of not in (None, 1, choices):
        raise Unsupported(
            "This version of mlx-fleet sends all choices that it samples: best_of may be 1, or "
            "equal to n.",
            param="best_of",
        )
    request = TextRequest(
        model=parsed.model,
        sampling=sampling_params(parsed),
        stops=stop_strings(parsed.stop, "stop"),
        max_tokens=token_limit(parsed.max_completion_tokens, parsed.max_tokens),
        stream=bool(parsed.stream),
        prompt=_prompt(parsed.prompt),
        prompt_field="prompt",
        constraint=read_constraint(parsed),
        logprobs=parsed.logprobs,
        choices=choices,
    )
    style = CompletionStyle(usage, choices, has_logprobs=parsed.logprobs is not None)
    return CompletionRequest(request, style)


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise Unsupported(
                "This version of mlx-fleet accepts one prompt a request.", param="prompt"
            )
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(_is_token(item) for item in value):
        raise BadRequest("prompt must be a string or a list of token ids.", param="prompt")
    return tuple(value)


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= MAX_INT


@dataclass(slots=True)
class _CompletionChoice:
    """The bytes that begin each chunk of one choice, and the offset at which its next token
    begins."""

    head: bytes
    offsets: TextOffsets = field(default_factory=TextOffsets)


class CompletionWriter:
    """Serializes the response to a completion request; every part is plain text."""

    keep_alive = KEEP_ALIVE
    content_type = CONTENT_TYPE

    def __init__(self, head: ResponseHead, style: CompletionStyle) -> None:
        self._style = style
        self._fields = head.completion("cmpl-", "text_completion")
        # A JSON object without its closing brace, so that choices can follow.
        self._chunk = event_head() + _encode(self._fields)[:-1] + b',"choices":['
        # Unlike for a chat, OpenAI's specification does not allow null for usage here.
        self._end = b"]}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}' + self._end
        self._choices = [
            _CompletionChoice(self._chunk + b'{"index":%d,"text":' % index)
            for index in range(style.choices)
        ]

    def accepted(self, accepted: Accepted) -> None:
        """Does nothing: a completion's stream has its usage in the last chunk only."""

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        pieces: list[bytes] = []
        target = self._choices[choice]
        for part in parts:
            tail = self._logprobs_tail(part, target) if part.logprobs else self._tail
            pieces += (target.head, _encode(part.text), tail)
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        reason = (last.finish or FinishReason.STOP).value.encode()
        head = self._choices[last.choice].head
        body = head + b'"","logprobs":null,"finish_reason":"' + reason + b'"}' + self._end
        if not last.is_last:
            return body
        if self._style.include_usage and last.usage is not None:
            usage = _encode(usage_fields(last.usage))
            body += self._chunk + b'],"usage":' + usage + b"}\n\n"
        return body + DONE

    def error(self, error: NodeError) -> bytes:
        return event(openai_envelope(error))

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        """Implements `Writer.whole`. Raises `EngineFault` if the engine reported no usage."""
        choices = [self._whole_choice(index, output) for index, output in enumerate(outputs)]
        return _encode(
            {**self._fields, "choices": choices, "usage": usage_fields(outputs[0].usage)}
        )

    def _whole_choice(self, index: int, collected: Collected) -> dict[str, object]:
        has_logprobs = self._style.has_logprobs
        return {
            "index": index,
            "text": "".join(segment.text for segment in collected.segments),
            "logprobs": TextOffsets().lists(collected.logprobs) if has_logprobs else None,
            "finish_reason": collected.finish.value,
        }

    def _logprobs_tail(self, part: Part, target: _CompletionChoice) -> bytes:
        lists = _encode(target.offsets.lists(part.logprobs))
        return b',"logprobs":' + lists + b',"finish_reason":null}' + self._end
