"""Parses the tools of an Anthropic body, and which of them the response may or must call."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from node.dialects.anthropic.client_tools import client_tool, is_client_run
from node.dialects.chat.tools import NAME_PATTERN
from node.dialects.fields.field_table import FIRST_FAULT, Lenient, refuse_invalid, unsupported
from node.dialects.fields.json_values import tool_schema
from node.dialects.fields.tool_choice import (
    AUTO,
    NO_CALLS,
    DeclaredTools,
    ToolChoice,
    hosted_tool,
    named,
    required,
)
from node.errors import BadRequest
from node.request import LeftOut, Tool


class ToolChoiceBody(Lenient):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_B = TypeVar("_B", bound=Lenient)


class _Tool(Lenient):
    name: _Name
    input_schema: dict[str, Any]
    description: str | None = None
    input_examples: Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    strict: bool | None = None
    allowed_callers: Annotated[list[str], FIRST_FAULT] | None = None


def read_tools(given: Sequence[dict[str, object]] | None) -> DeclaredTools:
    """Parses the declared tools. `cache_control` and `eager_input_streaming` have no effect:
    caching is automatic, and a call's input is streamed as the model generates it. Raises
    `BadRequest` or `Unsupported` with the path of the field at fault."""
    tools: dict[str, Tool] = {}
    left_out: list[LeftOut] = []
    for number, fields in enumerate(given or ()):
        path = f"tools[{number}]"
        if (hosted := hosted_tool(fields, path)) is not None:
            left_out.append(hosted)
            continue
        tool = _tool(fields, path)
        if tool.name in tools:
            raise BadRequest(f"There are two tools named {tool.name}.", param=f"{path}.name")
        tools[tool.name] = tool
    return DeclaredTools(tuple(tools.values()), tuple(left_out))


def read_choice(choice: ToolChoiceBody | None, tools: DeclaredTools) -> ToolChoice:
    """Parses which of the tools may be called, and whether one must be. Raises `BadRequest` or
    `Unsupported`."""
    if choice is None:
        return AUTO
    if choice.type == "tool":
        if choice.name is None:
            raise BadRequest("tool_choice.name is missing.", param="tool_choice.name")
        return named(choice.name, tools, "tool_choice.name")
    if choice.name is not None:
        raise BadRequest(
            "tool_choice.name is only allowed with type tool.", param="tool_choice.name"
        )
    if choice.type == "any":
        return required(tools, "tool_choice.type")
    if choice.type not in ("auto", "none"):
        raise BadRequest(
            "tool_choice.type must be auto, any, tool or none.", param="tool_choice.type"
        )
    return AUTO if choice.type == "auto" else NO_CALLS


class _Named(Lenient):
    name: _Name


def _tool(fields: dict[str, object], path: str) -> Tool:
    kind = fields.get("type")
    if is_client_run(fields):
        return client_tool(_read(_Named, fields, path).name, fields, path)
    if kind not in (None, "custom"):
        raise unsupported(f"tools of type {kind}, only custom ones", f"{path}.type")
    tool = _read(_Tool, fields, path)
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise unsupported("tools that only other tools call", f"{path}.allowed_callers")
    description = tool.description or ""
    if tool.input_examples:
        examples = "\n".join(json.dumps(each, ensure_ascii=False) for each in tool.input_examples)
        description = f"{description}\n\nExamples of its input:\n{examples}".lstrip()
    function: dict[str, Any] = {"name": tool.name}
    if description:
        function["description"] = description
    function["parameters"] = tool_schema(tool.input_schema, f"{path}.input_schema")
    if tool.strict is not None:
        function["strict"] = tool.strict
    return Tool(function, f"{path}.input_schema")


def _read(kind: type[_B], fields: dict[str, object], path: str) -> _B:
    try:
        return kind.model_validate(fields)
    except ValidationError as exc:
        refuse_invalid(exc, path)
