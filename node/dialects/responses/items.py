"""One item of `/v1/responses`: its type, its texts, and the form in which it is stored."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from node.dialects.fields.custom_input import arguments_of
from node.dialects.fields.field_table import arguments_text
from node.dialects.fields.media import media_part
from node.errors import BadRequest
from node.protocol.chain.canonical import model_name
from node.protocol.chain.tools import CLIENT_CALLS, is_hosted_item, output_of
from node.request import Content, MediaPart, TextPart, ToolCall

Item: TypeAlias = dict[str, Any]

SEAL = "mlx-fleet.1."
"""Prefix of an `encrypted_content` of ours."""

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALL = ("call_id", "namespace", "name")
_KEPT: Mapping[str, tuple[str, ...]] = {
    "additional_tools": ("role",),
    "message": ("role", "phase"),
    "function_call": _CALL,
    "function_call_output": (*_CALL, "output"),
    "custom_tool_call": (*_CALL, "input"),
    "custom_tool_call_output": (*_CALL, "output"),
    "reasoning": ("encrypted_content",),
    **dict.fromkeys(CLIENT_CALLS, ("call_id", "execution")),
    **{f"{kind}_output": ("call_id", "output") for kind in CLIENT_CALLS},
    "tool_search_output": ("call_id", "execution"),
}
"""Text fields that are stored, by type of item."""
_KEPT_WHOLE: Mapping[str, str] = {
    "additional_tools": "tools",
    "tool_search_output": "tools",
    **{kind: field for kind, (_, field) in CLIENT_CALLS.items()},
}
"""The field that is stored unchanged, by type of item."""


def kind_of(item: Item) -> object:
    """Returns the item's type; a message may lack the field."""
    return item.get("type") or ("message" if "role" in item else None)


def is_reference(item: Item) -> bool:
    kind = kind_of(item)
    return kind == "item_reference" or (kind is None and "id" in item)


def sealed(text: str) -> str:
    """Returns reasoning as `encrypted_content`. It is opaque to clients, which have the text beside
    it, and is decoded if a client sends back nothing else."""
    return SEAL + base64.b64encode(text.encode()).decode()


def stored_item(item: Item, new_id: str) -> Item:
    """Returns an input item as it is stored and listed: the fields that have a meaning here, an id
    (`new_id` if it has none), and the fields that the API adds."""
    kind = str(kind_of(item))
    given = item.get("id")
    kept: Item = {"id": given if isinstance(given, str) and given else new_id, "type": kind}
    kept |= {name: item[name] for name in _KEPT[kind] if isinstance(item.get(name), str)}
    if kind == "reasoning":
        kept["summary"] = _stored_parts(item.get("summary"), "summary_text")
        kept["content"] = _stored_parts(item.get("content"), "reasoning_text")
        return kept
    kept["status"] = "completed"
    if kind == "message":
        is_assistant = kept["role"] == "assistant"
        kept["content"] = _stored_parts(
            item.get("content"), "output_text" if is_assistant else "input_text"
        )
    elif kind == "function_call":
        kept["arguments"] = arguments_text(item.get("arguments"))
    elif kind in _KEPT_WHOLE:
        kept[_KEPT_WHOLE[kind]] = item.get(_KEPT_WHOLE[kind])
    elif is_output(kind) and "output" not in kept:
        kept["output"] = _stored_parts(output_of(item.get("output")), "input_text")
    return kept


def is_hosted(item: Item) -> bool:
    """True if the item reports a host's work, or only the host can read it."""
    return is_hosted_item(kind_of(item), item.get("call_id"))


def is_output(kind: object) -> bool:
    """True if items of this type have the output of a call."""
    return isinstance(kind, str) and kind.endswith("_output") and kind in _KEPT


def call_of(item: Item, path: str) -> ToolCall | None:
    """Returns the call of an item; None if it is not a call. Raises `BadRequest`."""
    kind = kind_of(item)
    if kind in CLIENT_CALLS:
        name, field = CLIENT_CALLS[str(kind)]
        return ToolCall(string_in(item, "call_id", path), name, arguments_text(item.get(field)))
    if kind not in ("function_call", "custom_tool_call"):
        return None
    call_id = string_in(item, "call_id", path)
    name = model_name(string_in(item, "name", path), item.get("namespace"))
    if kind == "function_call":
        return ToolCall(call_id, name, arguments_text(item.get("arguments")))
    text = string_in(item, "input", path, may_be_empty=True)
    return ToolCall(call_id, name, arguments_of(text))


def _stored_parts(content: Any, kind: str) -> list[Item]:
    """Converts parts that `parts_in` has accepted to their stored form; media become the text that
    prompts have for them."""
    more: Item = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    given = [{"type": kind, "text": content}] if isinstance(content, str) else content or ()
    return [
        {"type": "refusal", "refusal": part["refusal"]}
        if part["type"] == "refusal"
        else {"type": kind, "text": _part(part, "part").text, **more}
        for part in given
    ]


def reasoning_text(item: Item, path: str) -> str:
    """Returns the text of a reasoning item: the first of its content, its sealed text and its
    summary that is not empty. Raises `BadRequest`."""
    sealed_text = item.get("encrypted_content")
    content, summary = (
        [] if item.get(name) is None else texts_in(item[name], f"{path}.{name}")
        for name in ("content", "summary")
    )
    if any(content):
        return "".join(content)
    if isinstance(sealed_text, str) and sealed_text.startswith(SEAL):
        try:
            return base64.b64decode(sealed_text[len(SEAL) :], validate=True).decode()
        except (binascii.Error, ValueError):
            path = f"{path}.encrypted_content"
            raise BadRequest(f"{path} is damaged; send it back unchanged.", param=path) from None
    # Another server's encrypted content cannot be read; only its summary is left.
    return "\n\n".join(summary)


def texts_in(content: object, path: str) -> list[str]:
    return [part.text for part in parts_in(content, path)]


def parts_in(content: object, path: str) -> list[TextPart | MediaPart]:
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path)
    return [_part(part, f"{path}[{at}]") for at, part in enumerate(content)]


def _part(part: object, path: str) -> TextPart | MediaPart:
    if not isinstance(part, dict):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return TextPart(string_in(part, "text", path, may_be_empty=True))
    if kind == "refusal":
        return TextPart(string_in(part, "refusal", path, may_be_empty=True))
    media = media_part(part, path)
    if media is None:
        raise BadRequest(f"{path}.type is not the type of a part.", param=f"{path}.type")
    return media


def content_of(parts: Sequence[TextPart | MediaPart]) -> Content:
    """Returns the parts as content; a single text becomes a string, which every chat template
    accepts."""
    if not parts:
        return ""
    first = parts[0]
    return first.text if len(parts) == 1 and isinstance(first, TextPart) else tuple(parts)


def string_in(item: Mapping[str, Any], name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadRequest(f"{path}.{name} must be a string.", param=f"{path}.{name}")
    return value
