"""The tools of an Anthropic body, and which of them the answer may or must call."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from node.dialects.body import Lenient, refuse_invalid, unsupported
from node.dialects.chat_tools import NAME_PATTERN, tool_schema
from node.dialects.tool_choice import AUTO, NO_CALLS, ToolChoice, named, required
from node.errors import BadRequest
from node.request import Tool


class ToolChoiceBody(Lenient):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Tool(Lenient):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    input_schema: dict[str, Any]
    description: str | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


def read_tools(given: Sequence[dict[str, object]] | None) -> tuple[Tool, ...]:
    """The tools that are declared. `cache_control` and `eager_input_streaming` mean nothing: the
    cache is automatic, and the input of a call is sent once the call is complete. Raises
    `BadRequest` or `Unsupported`, naming the path."""
    tools: dict[str, Tool] = {}
    for number, fields in enumerate(given or ()):
        path = f"tools[{number}]"
        tool = _tool(fields, path)
        if tool.name in tools:
            raise BadRequest(f"There are two tools named {tool.name}.", param=f"{path}.name")
        tools[tool.name] = tool
    return tuple(tools.values())


def read_choice(choice: ToolChoiceBody | None, tools: Sequence[Tool]) -> ToolChoice:
    """Which of the tools may be called, and whether one must be. Raises `BadRequest`."""
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


def _tool(fields: dict[str, object], path: str) -> Tool:
    kind = fields.get("type")
    if kind not in (None, "custom"):
        raise unsupported(f"tools of type {kind}, only custom ones", f"{path}.type")
    try:
        tool = _Tool.model_validate(fields)
    except ValidationError as exc:
        refuse_invalid(exc, path)
    if tool.defer_loading:
        raise unsupported("tools that are loaded later", f"{path}.defer_loading")
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
