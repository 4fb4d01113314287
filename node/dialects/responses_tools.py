"""The tools of `/v1/responses`: functions, alone or in namespaces.

A function of a namespace has a name of its own for the model, made of both. Calls are told with
namespace and name apart again, as the client declared them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from pydantic import Field, ValidationError

from node.dialects.body import Lenient, refuse_invalid, unsupported
from node.dialects.chat_tools import NAME_PATTERN, tool_schema
from node.dialects.tool_choice import AUTO, NO_CALLS, ToolChoice, allowed, named, required
from node.errors import BadRequest, Unsupported
from node.protocol.canonical import model_name
from node.request import Tool

_CHOICE = "tool_choice"

_Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class _Function(Lenient):
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class _Namespace(Lenient):
    name: _Name
    description: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(min_length=1)]


class _Chosen(Lenient):
    """A function that a choice names."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSet:
    """What a body's `tools` declare."""

    tools: tuple[Tool, ...] = ()
    """As the model gets them."""
    shown: Sequence[Mapping[str, Any]] = ()
    """As the response repeats them: as they came, with the fields that clients look for."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(namespace, name) by the name that the model knows; only for functions of namespaces."""


def read_tool_set(value: object) -> ToolSet:
    """The tools of the field `tools`. Raises `BadRequest`, or `Unsupported` for what is neither a
    function nor a namespace of functions."""
    if value is None:
        return ToolSet()
    if not isinstance(value, list):
        raise BadRequest("tools must be a list.", param="tools")
    reader = _Reader()
    shown = [reader.read(tool, f"tools[{at}]") for at, tool in enumerate(value)]
    return ToolSet(tuple(reader.tools.values()), shown, reader.namespaces)


def read_choice(value: object, tools: Sequence[Tool]) -> ToolChoice:
    """What the field `tool_choice` says of the tools. Raises `BadRequest`, or `Unsupported` for a
    choice of what is no function."""
    if value is None or value == "auto":
        return AUTO
    if value == "none":
        return NO_CALLS
    if value == "required":
        return required(tools, _CHOICE)
    if not isinstance(value, Mapping):
        raise BadRequest(
            "tool_choice must be none, auto, required or an object with a type.", param=_CHOICE
        )
    if value.get("type") == "allowed_tools":
        return _allowed(value, tools)
    return named(_function_name(value, _CHOICE), tools, f"{_CHOICE}.name")


def _allowed(value: Mapping[str, Any], tools: Sequence[Tool]) -> ToolChoice:
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest("tool_choice.mode must be auto or required.", param=f"{_CHOICE}.mode")
    if not isinstance(listed, list):
        raise BadRequest("tool_choice.tools must be a list.", param=f"{_CHOICE}.tools")
    names = [_function_name(each, f"{_CHOICE}.tools[{at}]") for at, each in enumerate(listed)]
    return allowed(names, tools, f"{_CHOICE}.tools", must=mode == "required")


def _function_name(value: object, path: str) -> str:
    """The name by which the model knows the function that is chosen."""
    kind = _kind(value, path)
    if kind != "function":
        raise unsupported(f"a choice of {kind}, only of functions", f"{path}.type")
    chosen: _Chosen = _validated(_Chosen, value, path)
    return model_name(chosen.name, chosen.namespace)


class _Reader:
    """Goes through the tools once; `read` gives back what the response shows of each."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.namespaces: dict[str, tuple[str, str]] = {}

    def read(self, tool: object, path: str) -> dict[str, Any]:
        kind = _kind(tool, path)
        if kind == "function":
            return self._function(tool, path, None)
        if kind == "namespace":
            return self._namespace(tool, path)
        raise _no_function(kind, path)

    def _namespace(self, tool: object, path: str) -> dict[str, Any]:
        body = _validated(_Namespace, tool, path)
        shown = []
        for at, inner in enumerate(body.tools):
            inner_path = f"{path}.tools[{at}]"
            if (kind := _kind(inner, inner_path)) != "function":
                raise _no_function(kind, inner_path)
            # The model knows no namespaces, so the first function tells what this one is about.
            about = f"{body.name}: {body.description}" if body.description and not at else ""
            shown.append(self._function(inner, inner_path, body.name, about))
        return {
            "type": "namespace",
            "name": body.name,
            "description": body.description,
            "tools": shown,
        }

    def _function(
        self, tool: object, path: str, namespace: str | None, about: str = ""
    ) -> dict[str, Any]:
        body = _validated(_Function, tool, path)
        _refuse_options(body, path)
        name = model_name(body.name, namespace)
        if name in self.tools:
            raise BadRequest(f"{path}.name is the name of two tools.", param=f"{path}.name")
        definition = _definition(body, name, about, path)
        self.tools[name] = Tool(definition, f"{path}.parameters")
        if namespace is not None:
            self.namespaces[name] = (namespace, body.name)
        shown: dict[str, Any] = {"type": "function", "name": body.name}
        shown |= {"description": body.description, "parameters": body.parameters}
        shown["strict"] = body.strict
        if body.output_schema is not None:
            shown["output_schema"] = body.output_schema
        return shown


def _definition(body: _Function, name: str, about: str, path: str) -> dict[str, Any]:
    texts = [about, body.description or ""]
    if body.output_schema is not None:
        schema = msgspec.json.encode(tool_schema(body.output_schema, path)).decode()
        texts.append(f"It returns JSON of this schema: {schema}")
    function: dict[str, Any] = {"name": name}
    description = "\n\n".join(text for text in texts if text)
    if description or body.description is not None:
        function["description"] = description
    if body.parameters is not None:
        function["parameters"] = tool_schema(body.parameters, f"{path}.parameters")
    if body.strict is not None:
        function["strict"] = body.strict
    return function


def _refuse_options(body: _Function, path: str) -> None:
    if body.defer_loading:
        raise unsupported("tools that are loaded later", f"{path}.defer_loading")
    if body.allowed_callers is not None and "direct" not in body.allowed_callers:
        raise unsupported("functions that only programs call", f"{path}.allowed_callers")
    if (body.model_extra or {}).get("async"):
        raise unsupported("functions that run beside the answer", f"{path}.async")


def _no_function(kind: str, path: str) -> Unsupported:
    return Unsupported(
        f"This version of mlx-fleet runs no tools itself and knows functions only; leave {kind} "
        "out, or switch it off in the client.",
        param=f"{path}.type",
    )


def _kind(tool: object, path: str) -> str:
    if not isinstance(tool, dict):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise BadRequest(f"{path}.type must be a string.", param=f"{path}.type")
    return kind


def _validated(kind: type[Any], value: object, path: str) -> Any:
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        refuse_invalid(exc, path)
