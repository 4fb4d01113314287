"""Parses the tools of a chat request, and whether the model may or must call them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from node.dialects.fields.custom_tools import custom_tool, read_format
from node.dialects.fields.field_table import Lenient, refuse_invalid, unsupported
from node.dialects.fields.json_values import tool_schema
from node.dialects.fields.tool_choice import (
    AUTO,
    NO_CALLS,
    DeclaredTools,
    ToolChoice,
    allowed,
    forced_hosted,
    hosted_only,
    hosted_tool,
    named,
    required,
)
from node.errors import BadRequest
from node.protocol.chain.tools import is_hosted
from node.request import LeftOut, Tool

NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,128}$"
_NAMED_KINDS = ("function", "custom")
"""Types of tools that a `tool_choice` can name."""


class FunctionBody(Lenient):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomBody(Lenient):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    format: object = None


class ToolBody(Lenient):
    type: str
    function: FunctionBody | None = None
    custom: CustomBody | None = None


def read_tools(given: Sequence[Mapping[str, Any]], field: str = "tools") -> DeclaredTools:
    """Parses the tools of `field`. Raises `BadRequest`, or `Unsupported` for tools of another type
    that only the client could run."""
    tools: list[tuple[Tool, str]] = []
    left_out: list[LeftOut] = []
    for at, each in enumerate(given):
        path = f"{field}[{at}]"
        if (hosted := hosted_tool(each, path)) is not None:
            left_out.append(hosted)
        else:
            tools.append(_read_tool(each, path))
    return DeclaredTools(_by_name(tools), tuple(left_out))


def read_functions(bodies: Sequence[FunctionBody]) -> DeclaredTools:
    """Parses the older field `functions`. Raises `BadRequest`."""
    paths = [f"functions[{at}]" for at in range(len(bodies))]
    pairs = zip(bodies, paths, strict=True)
    return DeclaredTools(_by_name([(_tool(body, path), path) for body, path in pairs]))


def read_choice(value: object, tools: DeclaredTools) -> ToolChoice:
    """Parses the field `tool_choice` of a body with these tools. Raises `BadRequest` or
    `Unsupported`."""
    field = "tool_choice"
    if value is None or value == "auto":
        return AUTO
    if value == "none":
        return NO_CALLS
    if value == "required":
        return required(tools, field)
    if not isinstance(value, Mapping):
        raise BadRequest(f"{field} must be none, auto, required or an object.", param=field)
    return _chosen(value, tools, field)


def _chosen(value: Mapping[str, Any], tools: DeclaredTools, field: str) -> ToolChoice:
    kind = value.get("type")
    if kind in _NAMED_KINDS:
        return named(_chosen_name(value, field), tools, f"{field}.{kind}.name")
    if kind == "allowed_tools":
        return _allowed(value.get("allowed_tools"), tools, f"{field}.allowed_tools")
    if not isinstance(kind, str):
        raise BadRequest(f"{field}.type must be a string.", param=f"{field}.type")
    if is_hosted(value):
        raise forced_hosted(kind, f"{field}.type")
    raise unsupported(f"a {field} of type {kind!r}", f"{field}.type")


def read_function_call(value: object, functions: DeclaredTools) -> ToolChoice:
    """Parses the older field `function_call` of a body with these functions. Raises
    `BadRequest`."""
    field = "function_call"
    if value is None or value == "auto":
        return AUTO
    if value == "none":
        return NO_CALLS
    if not isinstance(value, Mapping):
        raise BadRequest(f"{field} must be none, auto or an object with a name.", param=field)
    return named(_name(value, field), functions, f"{field}.name")


def _allowed(value: object, tools: DeclaredTools, path: str) -> ToolChoice:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{path} must be an object.", param=path)
    mode, chosen = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest(f"{path}.mode must be auto or required.", param=f"{path}.mode")
    if not isinstance(chosen, list):
        raise BadRequest(f"{path}.tools must be a list.", param=f"{path}.tools")
    names = [
        _allowed_name(each, f"{path}.tools[{at}]")
        for at, each in enumerate(chosen)
        if not (isinstance(each, Mapping) and is_hosted(each))
    ]
    if chosen and not names:
        return hosted_only(chosen[0]["type"], f"{path}.tools", must=mode == "required")
    return allowed(names, tools, f"{path}.tools", must=mode == "required")


def _allowed_name(value: object, path: str) -> str:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = value.get("type", "function")
    if kind not in _NAMED_KINDS:
        raise unsupported(f"tools of type {kind!r}", f"{path}.type")
    return _chosen_name({"type": kind, **value}, path)


def _chosen_name(value: Mapping[str, Any], path: str) -> str:
    kind = value["type"]
    chosen = value.get(kind)
    if not isinstance(chosen, Mapping):
        raise BadRequest(f"{path}.{kind} must be an object.", param=f"{path}.{kind}")
    return _name(chosen, f"{path}.{kind}")


def _name(value: Mapping[str, Any], path: str) -> str:
    name = value.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{path}.name must be a string.", param=f"{path}.name")
    return name


def _read_tool(given: Mapping[str, Any], path: str) -> tuple[Tool, str]:
    """Returns the tool and the path of the object that has its name."""
    try:
        body = ToolBody.model_validate(given)
    except ValidationError as exc:
        refuse_invalid(exc, path)
    if body.type not in _NAMED_KINDS:
        raise unsupported(f"tools of type {body.type}", f"{path}.type")
    at = f"{path}.{body.type}"
    if body.type == "custom" and body.custom is not None:
        custom = body.custom
        grammar = read_format(custom.format, f"{at}.format")
        return custom_tool(custom.name, custom.description, grammar, at), at
    if body.function is None or body.type == "custom":
        raise BadRequest(f"{at} is missing.", param=at)
    return _tool(body.function, at), at


def _by_name(tools: Sequence[tuple[Tool, str]]) -> tuple[Tool, ...]:
    named: dict[str, Tool] = {}
    for tool, path in tools:
        if tool.name in named:
            raise BadRequest(f"{path}.name is the name of two tools.", param=f"{path}.name")
        named[tool.name] = tool
    return tuple(named.values())


def _tool(body: FunctionBody, path: str) -> Tool:
    path = f"{path}.parameters"
    function: dict[str, Any] = {"name": body.name}
    if body.description is not None:
        function["description"] = body.description
    if body.parameters is not None:
        function["parameters"] = tool_schema(body.parameters, path)
    if body.strict is not None:
        function["strict"] = body.strict
    return Tool(function, path)
