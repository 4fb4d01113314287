"""One item of `/v1/responses`: what kind it is of, its texts, and what is kept of it."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from node.dialects.fields.custom_input import arguments_of
from node.dialects.fields.field_table import arguments_text
from node.dialects.fields.media import media_part
from node.errors import BadRequest
from node.protocol.canonical import model_name
from node.protocol.tools import CLIENT_CALLS, is_hosted_item, output_of
from node.request import Content, MediaPart, TextPart, ToolCall

Item: TypeAlias = dict[str, Any]

SEAL = "mlx-fleet.1."
"""What our `encrypted_content` begins with."""

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
"""Of each kind of item, the fields that are texts."""
_KEPT_WHOLE: Mapping[str, str] = {
    "additional_tools": "tools",
    "tool_search_output": "tools",
    **{kind: field for kind, (_, field) in CLIENT_CALLS.items()},
}
"""The field that is kept as it came."""


def kind_of(item: Item) -> object:
    """The item's type; messages may come without."""
    return item.get("type") or ("message" if "role" in item else None)


def is_reference(item: Item) -> bool:
    kind = kind_of(item)
    return kind == "item_reference" or (kind is None and "id" in item)


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`: opaque to clients, which have the text beside it, and
    understood when they give back nothing else."""
    return SEAL + base64.b64encode(text.encode()).decode()


def stored_item(item: Item, new_id: str) -> Item:
    """An input item as it is kept and listed: what has a meaning here, an id, `new_id` if it has
    none, and the fields that a client need not give but gets."""
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
        is_answer = kept["role"] == "assistant"
        kept["content"] = _stored_parts(
            item.get("content"), "output_text" if is_answer else "input_text"
        )
    elif kind == "function_call":
        kept["arguments"] = arguments_text(item.get("arguments"))
    elif kind in _KEPT_WHOLE:
        kept[_KEPT_WHOLE[kind]] = item.get(_KEPT_WHOLE[kind])
    elif is_output(kind) and "output" not in kept:
        kept["output"] = _stored_parts(output_of(item.get("output")), "input_text")
    return kept


def is_hosted(item: Item) -> bool:
    """Whether it tells what a host did, or only that can read it."""
    return is_hosted_item(kind_of(item), item.get("call_id"))


def is_output(kind: object) -> bool:
    """Whether items of this type tell what a call gave back."""
    return isinstance(kind, str) and kind.endswith("_output") and kind in _KEPT


def called(item: Item, path: str) -> ToolCall | None:
    """The call that the item tells of; None for another one. Raises `BadRequest`."""
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
    """The parts of what `parts_in` has read; of media, what prompts show of it."""
    more: Item = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    given = [{"type": kind, "text": content}] if isinstance(content, str) else content or ()
    return [
        {"type": "refusal", "refusal": part["refusal"]}
        if part["type"] == "refusal"
        else {"type": kind, "text": _part(part, "part").text, **more}
        for part in given
    ]


def reasoning_text(item: Item, path: str) -> str:
    """The text of a reasoning item, from the first of its content, what is sealed, and its summary
    that holds any. Raises `BadRequest`."""
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
            raise BadRequest(f"{path} is not as it was given out.", param=path) from None
    # What another server has encrypted nobody else can read; its summary is what is left of it.
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
    """One text is the same as a string, which every template takes."""
    if not parts:
        return ""
    first = parts[0]
    return first.text if len(parts) == 1 and isinstance(first, TextPart) else tuple(parts)


def string_in(item: Mapping[str, Any], name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadRequest(f"{path}.{name} must be a string.", param=f"{path}.{name}")
    return value
