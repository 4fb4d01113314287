"""Canonical forms of the items of `/v1/responses`, and of the fields that a prompt shows before
them."""

import re
from collections.abc import Iterable, Mapping
from json import JSONDecoder
from typing import Any

import msgspec

from node.protocol.chain.canonical import (
    END,
    GAP,
    ROLES,
    Fields,
    OutputCall,
    Parts,
    Unreadable,
    message_form,
    model_name,
    shows_tools,
    system_form,
    text_form,
    tool_fields,
    tools_form,
    utf8,
)
from node.protocol.chain.dialect import Unit, objects
from node.protocol.chain.tools import (
    ADDING,
    CLIENT_CALLS,
    NONE_FOUND,
    SEARCH,
    SEARCH_ITEMS,
    is_hosted,
    is_hosted_item,
    output_of,
    tools_text,
)


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: Parts = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    output: Any = None
    call_id: Any = None
    tools: Any = None


_LEADING = re.compile(
    rb'\[\s*\{\s*(?:"(?:id|role)"\s*:\s*(?:null|"[^"\\]*")\s*,\s*)*"type"\s*:\s*"additional_tools"'
)
"""Matches an input whose first item adds tools to the body's own."""
_read_first = JSONDecoder().raw_decode
_OUTPUTS = frozenset(
    f"{kind}_output" for kind in ("function_call", "custom_tool_call", *CLIENT_CALLS)
)
_response_items = msgspec.json.Decoder(list[str | _Item]).decode
_instructions = msgspec.json.Decoder(str | None).decode


def response_items(fields: Fields) -> msgspec.Raw | None:
    """The input; a text is one item. None if there is none, which is valid for a body that
    continues a response."""
    raw = fields.get("input")
    if raw is not None and bytes(memoryview(raw)[:4]) != b"null":
        return raw
    if "previous_response_id" not in fields:
        raise Unreadable
    return None


def response_forms(text: bytes, before: int) -> Iterable[bytes]:
    """Tools that the first item adds are part of the preamble, and it has no form here. Raises
    `Unreadable` if `_LEADING` did not recognize such an item."""
    leads = not before and _LEADING.match(text) is not None
    for number, item in enumerate(_response_items(text)):
        if before or number or isinstance(item, str) or item.type != ADDING:
            yield _response_form(item)
        elif leads:
            yield b""
        else:
            raise Unreadable


def _response_form(item: str | _Item) -> bytes:
    return message_form(b"u", utf8(item)) if isinstance(item, str) else _item_form(item)


def _item_form(item: _Item) -> bytes:
    kind = item.type or ("message" if item.role else "item_reference" if item.id else None)
    if kind == "message":
        return _response_message(item)
    if kind == "reasoning" or is_hosted_item(kind, item.call_id):
        return b""
    if kind in (ADDING, SEARCH_ITEMS[1]):
        return _tools_form(kind, tools_text(item.tools))
    if kind is not None and (call := _response_call(item, kind)) is not None:
        return message_form(b"a", b"", calls=[call])
    if kind in _OUTPUTS:
        return message_form(b"t", text_form(_output_parts(item.output), GAP))
    if kind == "item_reference" and item.id:
        return b"R" + utf8(item.id) + END
    raise Unreadable


def _tools_form(kind: str, text: str) -> bytes:
    """The form of tools that are declared at this place in the conversation."""
    if kind == ADDING:
        return system_form(b"d", text, GAP) if text else b""
    return message_form(b"t", utf8(text or NONE_FOUND))


def _response_call(item: _Item, kind: str) -> OutputCall | None:
    if kind in CLIENT_CALLS:
        name, field = CLIENT_CALLS[kind]
        return OutputCall(name, getattr(item, field))
    if not item.name:
        return None
    if kind == "custom_tool_call":
        return OutputCall(model_name(item.name, item.namespace), {"input": item.input})
    if kind != "function_call":
        return None
    return OutputCall(model_name(item.name, item.namespace), item.arguments)


def _output_parts(output: Any) -> Parts:
    parts = output_of(output)
    if not isinstance(parts, str | list | None):
        raise Unreadable
    return parts


def _response_message(item: _Item) -> bytes:
    role = ROLES.get(item.role or "")
    if role is None:
        raise Unreadable
    if role in b"sd":
        return system_form(role, item.content, GAP)
    text = text_form(item.content, b"" if role == b"a" else GAP)
    return message_form(role, text) if text or role != b"a" else b""


def response_preamble(fields: Fields) -> list[Unit]:
    units = []
    if "tools" in fields and shows_tools(fields):
        units.append(Unit(fields["tools"], _tools_of_responses))
    if (added := _added(fields)) is not None:
        units.append(Unit(added, _tools_of_responses))
    if "instructions" in fields:
        units.append(Unit(fields["instructions"], _instructions_of_responses))
    return units


def _added(fields: Fields) -> msgspec.Raw | None:
    """The tools that the first item adds to the body's own. A prompt shows both in the same
    place."""
    raw = fields.get("input")
    if raw is None or not _LEADING.match(raw) or not shows_tools(fields):
        return None
    text = bytes(raw).decode()
    item, _ = _read_first(text, text.index("{"))
    return msgspec.Raw(msgspec.json.encode(item.get("tools") or []))


def _instructions_of_responses(raw: msgspec.Raw) -> bytes:
    text = _instructions(raw)
    return system_form(b"s", text, GAP) if text else b""


def _tools_of_responses(raw: msgspec.Raw) -> bytes:
    return tools_form(_response_tools(objects(raw) or ()))


def _response_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [_response_tool(tool) for tool in tools if not is_hosted(tool)]


def _response_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    inner = tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(inner, list):
        return {**tool_fields(tool), "tools": _response_tools(inner)}
    if tool.get("type") == "custom":
        return {"custom": tool_fields(tool, format="format")}
    if tool.get("type") == SEARCH:
        return {"search": tool_fields(tool, parameters="parameters")}
    return tool_fields(tool, parameters="parameters", output_schema="output_schema")
