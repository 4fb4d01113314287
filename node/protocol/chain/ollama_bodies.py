"""Canonical forms of Ollama's bodies: the same as of a chat with the same prompt."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from node.protocol.chain.canonical import (
    END,
    GAP,
    ROLES,
    Fields,
    OutputCall,
    Unreadable,
    message_form,
    system_form,
    tool_fields,
    tools_form,
    utf8,
)
from node.protocol.chain.dialect import Dialect, Unit, is_list, objects
from node.protocol.media import line_of

_EFFORTS = frozenset((b'"minimal"', b'"low"', b'"medium"', b'"high"', b'"xhigh"', b'"max"'))
_RAW = "raw"
"""The role that stands for a prompt without a template."""
_SPOKEN = ("system", "user", "assistant", "tool")
_TRUE = msgspec.Raw(b"true")
_NULL = msgspec.Raw(b"null")


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: Any = None


class _Call(msgspec.Struct, gc=False):
    function: _Function


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | None = None
    images: list[msgspec.Raw] | None = None
    tool_calls: list[_Call] | None = None


_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_decode_flag = msgspec.json.Decoder(bool | None).decode


def _options(fields: Fields) -> Fields:
    """The options that change a prompt from its first token on, under the names of a chat."""
    think = bytes(fields.get("think", _NULL))
    made = {name: fields[name] for name in ("chat_template_kwargs",) if name in fields}
    if think in (b"true", b"false"):
        made["enable_thinking"] = fields["think"]
    elif think in _EFFORTS:
        made |= {"enable_thinking": _TRUE, "reasoning_effort": fields["think"]}
    return made


def _forms(text: bytes, _before: int) -> Iterable[bytes]:
    return map(_form, _messages(text))


def _form(message: _Message) -> bytes:
    text = message.content or ""
    if message.role == _RAW:
        return b"p" + utf8(text) + END
    if message.role not in _SPOKEN:
        raise Unreadable
    role = ROLES[message.role]
    if role == b"s" and not message.images:
        return system_form(role, text, GAP)
    pieces = [*[line_of("image")] * len(message.images or ()), text]
    shown = (b"" if role == b"a" else GAP).join(utf8(each) for each in pieces if each)
    calls = message.tool_calls or () if role == b"a" else ()
    made = [OutputCall(call.function.name, call.function.arguments) for call in calls]
    return message_form(role, shown, calls=made)


def _chat_preamble(fields: Fields) -> list[Unit]:
    return [Unit(fields["tools"], _tools)] if "tools" in fields else []


def _tools(raw: msgspec.Raw) -> bytes:
    return tools_form(map(_tool, objects(raw) or ()))


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise Unreadable
    return tool_fields(function, parameters="parameters")


def _chat_items(fields: Fields) -> msgspec.Raw:
    messages = fields.get("messages")
    if messages is None or not is_list(messages):
        raise Unreadable
    return messages


def _generate_preamble(fields: Fields) -> list[Unit]:
    return [Unit(fields["system"], _system)] if "system" in fields else []


def _system(raw: msgspec.Raw) -> bytes:
    text = _decode_text(raw)
    return system_form(b"s", text, GAP) if text else b""


def _generate_items(fields: Fields) -> msgspec.Raw:
    """The prompt as a list of one message."""
    role = _RAW if _decode_flag(fields.get("raw", _NULL)) else "user"
    names = (("prompt", "content"), ("images", "images"))
    message: dict[str, Any] = {ours: fields[its] for its, ours in names if its in fields}
    return msgspec.Raw(msgspec.json.encode([{"role": role, **message}]))


CHAT = Dialect(_chat_preamble, _chat_items, _forms, options=_options)
GENERATE = Dialect(_generate_preamble, _generate_items, _forms, options=_options)
