"""Translates Ollama's requests into OpenAI's dialect, for third-party servers, few of which know
Ollama's. What has the same form passes undecoded."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.prefix import Fields, read_fields
from node.protocol.paths import PATH_CHAT, PATH_COMPLETIONS, PATH_OLLAMA_GENERATE

_ABSENT = msgspec.Raw(b"")
_NULL = (b"", b"null")
_SAME = ("model", "tools", "logprobs", "top_logprobs")
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "stop": "stop",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Options under the names that other servers know; those that concern llama.cpp's runner are left
out."""
_LEVELS = (b'"minimal"', b'"low"', b'"medium"', b'"high"', b'"xhigh"', b'"max"')
_PICTURES = ((b"/9j/", "jpeg"), (b"R0lG", "gif"), (b"UklG", "webp"))
"""Beginnings of files in base64, and their types; any other is taken for a PNG."""
_MOST = 2**31 - 1
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Translated(NamedTuple):
    """A request in OpenAI's dialect."""

    path: str
    body: bytes
    hides_thinking: bool
    """True if the client wants to see no thinking."""


class _OllamaFunction(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _ABSENT


class _OllamaCall(msgspec.Struct):
    function: _OllamaFunction
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw = _ABSENT
    images: list[msgspec.Raw] | None = None
    tool_calls: list[_OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _OpenCalls:
    """The calls of the newest response, whose results follow it in Ollama's dialect without ids."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[tuple[str, str]] = []
        """Id and name of each."""

    def begin(self, calls: Sequence[_OllamaCall]) -> list[str]:
        """Returns the ids of a message's calls."""
        self._open = []
        for call in calls:
            self._count += 1
            self._open.append((call.id or f"call_{self._count}", call.function.name))
        return [call_id for call_id, _ in self._open]

    def end(self, name: str | None) -> str:
        """Returns the id of the first open call of that name, or of any name."""
        found = next((each for each in self._open if name is None or each[1] == name), None)
        if found is None:
            return f"call_{self._count}"
        self._open.remove(found)
        return found[0]


_decode_messages = msgspec.json.Decoder(list[_Message] | None).decode
_decode_options = msgspec.json.Decoder(Fields | None).decode
_decode_images = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_encode = msgspec.json.encode


def translated(path: str, body: bytes, *, stream: bool) -> Translated:
    """Returns the request in OpenAI's dialect; one that is not valid as it is, so that the server
    refuses it."""
    try:
        fields = read_fields(body)
        made = _common(fields)
        made["stream"] = stream
        hides_thinking = bytes(fields.get("think", _ABSENT)) == b"false"
        if path == PATH_OLLAMA_GENERATE and bytes(fields.get("raw", _ABSENT)) == b"true":
            made["prompt"] = fields.get("prompt", msgspec.Raw(b'""'))
            return Translated(PATH_COMPLETIONS, _encode(made), hides_thinking)
        is_chat = path != PATH_OLLAMA_GENERATE
        made["messages"] = _messages(fields) if is_chat else _prompt(fields)
        return Translated(PATH_CHAT, _encode(made), hides_thinking)
    except _BROKEN:
        return Translated(PATH_CHAT, body, hides_thinking=False)


def _common(fields: Fields) -> dict[str, Any]:
    made: dict[str, Any] = {name: fields[name] for name in _SAME if _is_set(fields, name)}
    options = _decode_options(fields["options"]) if _is_set(fields, "options") else None
    for name, value in (options or {}).items():
        if name in _OPTIONS and bytes(value) not in _NULL:
            made[_OPTIONS[name]] = value
    limit = _number(options, "num_predict")
    if limit is not None and limit > 0:
        made["max_tokens"] = min(limit, _MOST)
    seed = _number(options, "seed")
    if seed is not None and 0 <= seed <= _MOST:
        made["seed"] = seed
    if bytes(fields.get("think", _ABSENT)) in _LEVELS:
        made["reasoning_effort"] = fields["think"]
    if (form := _format(fields.get("format", _ABSENT))) is not None:
        made["response_format"] = form
    return made


def _number(options: Mapping[str, msgspec.Raw] | None, name: str) -> int | None:
    if not options or bytes(options.get(name, _ABSENT)) in _NULL:
        return None
    return int(msgspec.json.decode(options[name], type=float))


def _format(raw: msgspec.Raw) -> dict[str, Any] | None:
    text = bytes(raw)
    if text == b'"json"':
        return {"type": "json_object"}
    if not text.startswith(b"{"):
        return None
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": raw}}


def _prompt(fields: Fields) -> list[dict[str, Any]]:
    images = _decode_images(fields["images"]) if _is_set(fields, "images") else None
    content = _content(fields.get("prompt", _ABSENT), images)
    system = [{"role": "system", "content": fields["system"]}] if _is_set(fields, "system") else []
    return [*system, {"role": "user", "content": content}]


def _messages(fields: Fields) -> list[dict[str, Any]]:
    calls = _OpenCalls()
    found = _decode_messages(fields["messages"]) if _is_set(fields, "messages") else None
    return [_message(each, calls) for each in found or ()]


def _message(message: _Message, calls: _OpenCalls) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role}
    made["content"] = _content(message.content, message.images)
    if message.role == "tool":
        made["tool_call_id"] = message.tool_call_id or calls.end(message.tool_name)
    elif message.tool_calls:
        ids = calls.begin(message.tool_calls)
        made["tool_calls"] = [
            {"id": call_id, "type": "function", "function": _function(call.function)}
            for call_id, call in zip(ids, message.tool_calls, strict=True)
        ]
    return made


def _function(function: _OllamaFunction) -> dict[str, str]:
    """Returns the function with its arguments as text."""
    return {"name": function.name, "arguments": bytes(function.arguments).decode() or "{}"}


def _content(text: msgspec.Raw, images: Sequence[msgspec.Raw] | None) -> Any:
    shown = msgspec.Raw(b'""') if bytes(memoryview(text)[:5]) in _NULL else text
    if not images:
        return shown
    parts: list[dict[str, Any]] = [{"type": "text", "text": shown}]
    return [*parts, *({"type": "image_url", "image_url": {"url": _url(each)}} for each in images)]


def _url(image: msgspec.Raw) -> str:
    text = bytes(image).strip(b'"')
    kind = next((kind for begin, kind in _PICTURES if text.startswith(begin)), "png")
    return f"data:image/{kind};base64,{text.decode()}"


def _is_set(fields: Fields, name: str) -> bool:
    return bytes(memoryview(fields.get(name, _ABSENT))[:5]) not in _NULL
