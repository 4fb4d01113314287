"""Canonical form of request bodies: the same bytes wherever a prompt shows the same, in any
dialect.

The form of a message is its role, its text and its other shown fields, each ended by a byte that
cannot occur in UTF-8, so that no two different messages have the same form. Ids, reasoning, cache
marks and volatile lines of system prompts are left out.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.volatile import without_volatile_lines
from node.protocol.media import document_text, line_of, noun_of, search_result_text

Fields = dict[str, msgspec.Raw]
"""A body's top-level fields, undecoded."""

PLAIN_NAMESPACE = "functions"
"""The model knows the functions of this namespace by their plain names, as it does functions
without a namespace."""

_FORMAT = 2
"""Version of the form, increased with every change, so that chains of two versions share
nothing."""
END, GAP = b"\xff", b"\xfe"
_JOINT = "__"
ROLES: Mapping[str, bytes] = {
    "system": b"s",
    "developer": b"d",
    "user": b"u",
    "assistant": b"a",
    "tool": b"t",
    "function": b"t",
}
_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
"""Types of parts that are text."""
_BLOCKS: Mapping[object, Callable[[Mapping[str, Any]], str]] = {
    "compaction": lambda block: block.get("content") or "",
    "document": document_text,
    "search_result": search_result_text,
    "tool_reference": lambda block: block["tool_name"],
}
"""Types of parts whose text is in other fields."""

Parts = str | list[dict[str, Any]] | None
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


class Unreadable(ValueError):
    """The body is not valid for any endpoint."""


class OutputText(NamedTuple):
    """A run of a response's text."""

    text: str


class OutputCall(NamedTuple):
    """A tool call that a response makes."""

    name: str
    """The name by which the model knows the function."""
    arguments: object
    """JSON text of an object; a client may also send the object itself."""


def model_name(name: str, namespace: object = None) -> str:
    """The name by which the model knows a function."""
    if not isinstance(namespace, str) or namespace in ("", PLAIN_NAMESPACE):
        return name
    return namespace + name if namespace.endswith(_JOINT) else namespace + _JOINT + name


def seed(fields: Fields, model: str, salt: str) -> bytes:
    """Bytes of the options that change a prompt from its first token on."""
    given = {name: _decode(fields[name]) for name in _OPTIONS if name in fields}
    thinks, thinking = given.get("enable_thinking"), given.get("thinking")
    if thinks is None and isinstance(thinking, dict):
        thinks = thinking.get("type") != "disabled"
    effort = given.get("reasoning_effort")
    for name in ("reasoning", "output_config"):
        owner = given.get(name)
        if effort is None and isinstance(owner, dict):
            effort = owner.get("effort")
    if effort == "none":
        thinks, effort = False, None
    variables = given.get("chat_template_kwargs") or {}
    return _encode_sorted([_FORMAT, model, salt, thinks, effort, variables])


_OPTIONS = (
    "enable_thinking",
    "thinking",
    "reasoning_effort",
    "reasoning",
    "output_config",
    "chat_template_kwargs",
)


# --- the form --------------------------------------------------------------------------------


def message_form(
    role: bytes, text: bytes, *, name: str | None = None, calls: Iterable[OutputCall] = ()
) -> bytes:
    """The text comes first, so that the form of a longer text shares a prefix with this one."""
    pieces = [role, text, END]
    if name:
        pieces += (b"N", utf8(name), END)
    for call in calls:
        pieces += (b"C", utf8(call.name), END, _arguments(call.arguments), END)
    return b"".join(pieces)


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _arguments(given: object) -> bytes:
    """The arguments as the template reads them: an object, or an object with the text as its only
    value."""
    if isinstance(given, str):
        try:
            read = _decode(given.strip() or "{}")
            return _encode_sorted(read if isinstance(read, dict) else {"arguments": given})
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return utf8(given)
    return _encode_sorted({} if given is None else given)


def text_form(content: Parts, gap: bytes, clean: Callable[[str], str] = str) -> bytes:
    """The text of a content, with `gap` between its parts."""
    if content is None or isinstance(content, str):
        return utf8(clean(content or ""))
    return gap.join(filter(None, (_part(part, clean) for part in content)))


def _part(part: Mapping[str, Any], clean: Callable[[str], str]) -> bytes:
    kind = part.get("type")
    if kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise Unreadable
        return utf8(clean(text))
    if kind in _BLOCKS:
        return utf8(_BLOCKS[kind](part))
    noun = noun_of(kind)
    if noun is None:
        raise Unreadable
    return utf8(line_of(noun))


def system_form(role: bytes, content: Parts, gap: bytes) -> bytes:
    """The form of a system message; empty if only volatile lines were in it."""
    text = text_form(content, gap, without_volatile_lines)
    return message_form(role, text) if text or not content else b""


def tools_form(functions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(b"T" + _encode_sorted(function) + END for function in functions)


def tool_fields(given: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The fields of a tool that a prompt shows. `names` maps our names to those in `given`."""
    names = {"name": "name", "description": "description", "strict": "strict", **names}
    return {ours: given[its] for ours, its in names.items() if given.get(its) is not None}


def shows_tools(fields: Fields, choice: str = "tool_choice") -> bool:
    """True if the prompt shows the body's tools to the model."""
    value = _decode(fields[choice]) if choice in fields else None
    kind = value.get("type") if isinstance(value, dict) else value
    return kind != "none"
