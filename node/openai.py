"""OpenAI's JSON: what a body may ask for, and how an answer is spelled.

No other file knows OpenAI's field names. Each field is honoured or refused: `BadRequest` where its
value is not valid, `Unsupported` where it asks for what this version cannot do. Fields that no
OpenAI endpoint knows are ignored, and so are those that ask for nothing without what is refused:
`parallel_tool_calls` without tools, and what only labels a request (`user`, `metadata`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from node.errors import BadRequest, NodeError, Unsupported
from node.protocol.messages import FinishReason
from node.types import RowUsage, SamplingParams

MAX_STOPS = 16
MAX_INT = 2**31 - 1

_ROLES = ("system", "developer", "user", "assistant")
_MESSAGE_EXTRAS = {
    "tool_calls": "tool calls",
    "function_call": "tool calls",
    "audio": "audio",
}
_MEDIA_PARTS = (
    "image_url",
    "input_image",
    "input_audio",
    "audio_url",
    "video",
    "video_url",
    "file",
)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What a body asks for, validated. Exactly one of `messages` and `prompt` is there."""

    model: str
    sampling: SamplingParams
    stops: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    include_usage: bool
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids as the client gave them."""

    @property
    def prompt_field(self) -> str:
        """The field that holds the prompt, for errors about it."""
        return "prompt" if self.messages is None else "messages"


# --- bodies ----------------------------------------------------------------------------------


class _Lenient(BaseModel):
    # Extra fields are kept, so that the ones that ask for more than we can do are refused.
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _StreamOptions(_Lenient):
    include_usage: bool | None = None


class _Message(_Lenient):
    role: str
    content: object = None


_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Count = Annotated[int, Field(ge=1)]


class _Body(_Lenient):
    model: Annotated[str, Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: (
        dict[Annotated[int, Field(ge=0, le=MAX_INT)], Annotated[float, Field(ge=-100, le=100)]]
        | None
    ) = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _ChatBody(_Body):
    messages: Annotated[list[_Message], Field(min_length=1)]


class _CompletionBody(_Body):
    prompt: object


_B = TypeVar("_B", bound=_Body)


def parse_chat(body: bytes) -> TextRequest:
    """The body of `/v1/chat/completions`. Raises `BadRequest` or `Unsupported`."""
    parsed = _validate(_ChatBody, body)
    messages = tuple(_message(message, i) for i, message in enumerate(parsed.messages))
    return _request(parsed, messages=messages, prompt=None)


def parse_completion(body: bytes) -> TextRequest:
    """The body of `/v1/completions`. Raises `BadRequest` or `Unsupported`."""
    parsed = _validate(_CompletionBody, body)
    return _request(parsed, messages=None, prompt=_prompt(parsed.prompt))


def _validate(kind: type[_B], body: bytes) -> _B:
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as exc:
        _refuse(exc)
    for field, is_neutral in _NEUTRAL.items():
        if not is_neutral((parsed.model_extra or {}).get(field)):
            raise Unsupported(
                f"This version of mlx-fleet does not support this value of {field}.", param=field
            )
    return parsed


def _refuse(exc: ValidationError) -> NoReturn:
    """The first problem that pydantic found, as a `BadRequest` that names the field."""
    problem = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    reason = problem["msg"][0].lower() + problem["msg"][1:]
    path = ""
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step}" if path else step
    if problem["type"] == "json_invalid":
        raise BadRequest(
            f"The body is not valid JSON ({problem['msg'].removeprefix('Invalid JSON: ')})."
        ) from None
    if not path:
        raise BadRequest("The body must be a JSON object.") from None
    if problem["type"] == "missing":
        raise BadRequest(f"{path} is missing.", param=path) from None
    raise BadRequest(f"{path} is not valid: {reason}.", param=path) from None


def _request(
    body: _Body, *, messages: tuple[ChatMessage, ...] | None, prompt: str | tuple[int, ...] | None
) -> TextRequest:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise BadRequest("stream_options is only allowed with stream.", param="stream_options")
    max_tokens = body.max_completion_tokens or body.max_tokens
    return TextRequest(
        model=body.model,
        sampling=_sampling(body),
        stops=_stops(body.stop),
        max_tokens=None if max_tokens is None else min(max_tokens, MAX_INT),
        stream=stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        messages=messages,
        prompt=prompt,
    )


def _sampling(body: _Body) -> SamplingParams:
    default = SamplingParams()
    top_k = body.top_k or 0
    penalty = body.repetition_penalty
    return SamplingParams(
        temperature=default.temperature if body.temperature is None else body.temperature,
        top_p=default.top_p if body.top_p is None else body.top_p,
        top_k=top_k if 0 < top_k <= MAX_INT else 0,
        min_p=body.min_p or 0.0,
        seed=body.seed,
        repetition_penalty=default.repetition_penalty if penalty is None else penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple((body.logit_bias or {}).items()),
    )


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest("stop must be a string or a list of strings, none empty.", param="stop")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop holds more than {MAX_STOPS} strings.", param="stop")
    return tuple(stops)


def _message(message: _Message, index: int) -> ChatMessage:
    path = f"messages[{index}]"
    if message.role in ("tool", "function"):
        raise Unsupported(
            f"This version of mlx-fleet does not support messages of role {message.role}.",
            param=f"{path}.role",
        )
    if message.role not in _ROLES:
        raise BadRequest(
            f"{path}.role must be one of {', '.join(_ROLES)}.",
            param=f"{path}.role",
        )
    for field, words in _MESSAGE_EXTRAS.items():
        if (message.model_extra or {}).get(field):
            raise Unsupported(
                f"This version of mlx-fleet does not support {words}.", param=f"{path}.{field}"
            )
    return ChatMessage(message.role, _content(message, f"{path}.content"))


def _content(message: _Message, path: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None and message.role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path)
    return "".join(_part_text(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = part.get("type")
    if kind == "text":
        text = part.get("text")
        if not isinstance(text, str):
            raise BadRequest(f"{path}.text must be a string.", param=f"{path}.text")
        return text
    if kind in _MEDIA_PARTS:
        raise Unsupported(
            f"This version of mlx-fleet does not support {kind} parts.", param=f"{path}.type"
        )
    raise BadRequest(f"{path}.type must be text.", param=f"{path}.type")


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise Unsupported(
                "This version of mlx-fleet takes one prompt a request.", param="prompt"
            )
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(_is_token(item) for item in value):
        raise BadRequest("prompt must be a string or a list of token ids.", param="prompt")
    return tuple(value)


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= MAX_INT


def _is_absent(value: object) -> bool:
    return value is None


def _is_off(value: object) -> bool:
    return not value or value == "none"


def _is_one(value: object) -> bool:
    return value is None or (_is_token(value) and value == 1)


_NEUTRAL: dict[str, Callable[[object], bool]] = {
    "tools": _is_off,
    "tool_choice": _is_off,
    "functions": _is_off,
    "function_call": _is_off,
    "response_format": lambda value: value is None or value == {"type": "text"},
    "n": _is_one,
    "best_of": _is_one,
    "logprobs": lambda value: value is None or value is False,
    "top_logprobs": _is_off,
    "echo": _is_off,
    "suffix": _is_off,
    "reasoning_effort": _is_absent,
    "chat_template_kwargs": _is_off,
    "enable_thinking": _is_absent,
    "max_thinking_tokens": _is_absent,
    "modalities": lambda value: not value or value == ["text"],
    "audio": _is_absent,
    "prediction": _is_absent,
    "web_search_options": _is_absent,
    "store": lambda value: value is None or value is False,
    "service_tier": lambda value: value in (None, "auto", "default"),
}
"""Fields of later versions, and which of their values ask for nothing."""


# --- answers ---------------------------------------------------------------------------------


class Answer:
    """Spells one request's answer, whole or in chunks. A content chunk is
    `content_head + JSON of the text + content_tail`; the first one has `first_head`."""

    def __init__(self, request: TextRequest, request_id: str, model: str, created_s: int) -> None:
        self._chat = request.messages is not None
        self.include_usage = request.include_usage
        chunk_kind = "chat.completion.chunk" if self._chat else "text_completion"
        whole_kind = "chat.completion" if self._chat else "text_completion"
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        self._fields = {"id": prefix + request_id, "object": whole_kind, "created": created_s}
        self._fields["model"] = model
        # A JSON object without its closing brace, so that choices can follow.
        self._chunk = _encode({**self._fields, "object": chunk_kind})[:-1] + b',"choices":['
        self._end = b'],"usage":null}' if self.include_usage else b"]}"
        role = b'"delta":{"role":"assistant","content":'
        next_key = b'"delta":{"content":' if self._chat else b'"text":'
        self.first_head = self._chunk + b'{"index":0,' + (role if self._chat else next_key)
        self.content_head = self._chunk + b'{"index":0,' + next_key
        close = b"}" if self._chat else b""
        self.content_tail = close + b',"logprobs":null,"finish_reason":null}' + self._end

    def role(self) -> bytes | None:
        """A chunk with the role and no text, for an answer that has none; None if the dialect
        has no role."""
        return self.first_head + b'""' + self.content_tail if self._chat else None

    def finish(self, reason: FinishReason) -> bytes:
        """The last chunk with a choice."""
        body = b'"delta":{}' if self._chat else b'"text":""'
        ending = b',"logprobs":null,"finish_reason":' + _encode(reason.value) + b"}"
        return self._chunk + b'{"index":0,' + body + ending + self._end

    def usage(self, usage: RowUsage) -> bytes:
        """The chunk after the last, without choices."""
        return self._chunk + b'],"usage":' + _encode(_usage(usage)) + b"}"

    def whole(self, text: str, reason: FinishReason, usage: RowUsage) -> bytes:
        """The answer of stream=false."""
        choice: dict[str, object] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": reason.value}
        return _encode({**self._fields, "choices": [choice], "usage": _usage(usage)})


def _usage(usage: RowUsage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def error_body(error: NodeError) -> bytes:
    """OpenAI's error envelope."""
    fields = {"message": error.message, "type": error.kind, "param": error.param}
    return _encode({"error": {**fields, "code": error.code}})


def model_body(name: str, created_s: int) -> bytes:
    """The answer of `/v1/models/{id}`."""
    return _encode(_model(name, created_s))


def models_body(names: Sequence[str], created_s: int) -> bytes:
    """The answer of `/v1/models`."""
    return _encode({"object": "list", "data": [_model(name, created_s) for name in names]})


def _model(name: str, created_s: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created_s, "owned_by": "mlx-fleet"}
