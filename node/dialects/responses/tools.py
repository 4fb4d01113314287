"""The tools of `/v1/responses`: functions and custom tools, alone or in namespaces.

The model knows a tool of a namespace by one name made of both. In calls the two are separate again,
as the client declared them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from pydantic import Field, ValidationError

from node.dialects.chat.tools import NAME_PATTERN
from node.dialects.fields.custom_tools import custom_tool, read_format
from node.dialects.fields.field_table import FIRST_FAULT, Lenient, refuse_invalid, unsupported
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
from node.dialects.responses.input import AddedTools
from node.errors import BadRequest, Unsupported
from node.protocol.chain.canonical import model_name
from node.protocol.chain.tools import SEARCH, is_hosted
from node.request import LeftOut, Tool

_CHOICE = "tool_choice"
_NOTHING_ADDED = AddedTools()
_SEARCHED = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["query"],
}

_Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class _FunctionToolBody(Lenient):
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    allowed_callers: Annotated[list[str], FIRST_FAULT] | None = None


class _CustomToolBody(Lenient):
    name: _Name
    description: str | None = None
    format: dict[str, Any] | None = None


class _ToolSearchBody(Lenient):
    """A search for tools that the client runs."""

    description: str | None = None
    parameters: dict[str, Any] | None = None


class _NamespaceBody(Lenient):
    name: _Name
    description: str | None = None
    tools: Annotated[list[dict[str, Any]], FIRST_FAULT, Field(min_length=1)]


class _ChosenToolBody(Lenient):
    """A tool that a choice names."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools that a body's `tools` and its input declare."""

    declared: DeclaredTools = DeclaredTools()
    """All declared tools."""
    front: tuple[Tool, ...] = ()
    """The tools that the template renders."""
    late: tuple[Tool, ...] = ()
    """The tools that later items add, as in `TextRequest`."""
    shown: Sequence[Mapping[str, Any]] = ()
    """The tools as the response repeats them: as the client sent them, with all fields that clients
    expect."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(namespace, name) by the model's name of the tool; only for tools of namespaces."""
    custom: frozenset[str] = frozenset()
    """The model's names of custom tools, whose input is text."""
    searches: bool = False
    """True if `SEARCH` is the client's search for tools, not a function of that name."""


def read_tool_set(value: object, added: AddedTools = _NOTHING_ADDED) -> ToolSet:
    """Parses the field `tools` and the tools that input items add. Raises `BadRequest`, or
    `Unsupported` for other tools that only the client could run."""
    collector = _ToolCollector()
    if value is not None:
        collector.read_all(value, "tools")
    collector.may_replace = True
    for tools, path in added.front:
        collector.read_all(tools, path)
    front = dict(collector.tools)
    for tools, path in added.late:
        collector.read_all(tools, path)
    late = tuple(tool for name, tool in collector.tools.items() if front.get(name) is not tool)
    declared = DeclaredTools(tuple(collector.tools.values()), tuple(collector.left_out))
    searches = SEARCH in collector.tools and collector.searches
    return ToolSet(
        declared,
        tuple(front.values()),
        late,
        collector.shown,
        collector.namespaces,
        declared.custom,
        searches,
    )


def read_choice(value: object, declared: DeclaredTools) -> ToolChoice:
    """Parses the field `tool_choice`. Raises `BadRequest`, or `Unsupported` for a type that clients
    cannot declare."""
    if value is None or value == "auto":
        return AUTO
    if value == "none":
        return NO_CALLS
    if value == "required":
        return required(declared, _CHOICE)
    if not isinstance(value, Mapping):
        raise BadRequest(
            "tool_choice must be none, auto, required or an object with a type.", param=_CHOICE
        )
    if value.get("type") == "allowed_tools":
        return _allowed(value, declared)
    if value.get("type") == SEARCH and any(tool.name == SEARCH for tool in declared.tools):
        return named(SEARCH, declared, f"{_CHOICE}.type")
    if is_hosted(value):
        raise forced_hosted(value["type"], f"{_CHOICE}.type")
    return named(_tool_name(value, _CHOICE), declared, f"{_CHOICE}.name")


def _allowed(value: Mapping[str, Any], declared: DeclaredTools) -> ToolChoice:
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest("tool_choice.mode must be auto or required.", param=f"{_CHOICE}.mode")
    if not isinstance(listed, list):
        raise BadRequest("tool_choice.tools must be a list.", param=f"{_CHOICE}.tools")
    path = f"{_CHOICE}.tools"
    names = [
        _tool_name(each, f"{path}[{at}]")
        for at, each in enumerate(listed)
        if not (isinstance(each, Mapping) and is_hosted(each))
    ]
    if listed and not names:
        return hosted_only(listed[0]["type"], path, must=mode == "required")
    return allowed(names, declared, path, must=mode == "required")


def _tool_name(value: object, path: str) -> str:
    """Returns the model's name of the chosen tool."""
    kind = _kind(value, path)
    if kind not in ("function", "custom"):
        raise unsupported(
            f"a choice of type {kind}, only of functions and custom tools", f"{path}.type"
        )
    chosen: _ChosenToolBody = _validated(_ChosenToolBody, value, path)
    return model_name(chosen.name, chosen.namespace)


class _ToolCollector:
    """Collects tools from several lists."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.namespaces: dict[str, tuple[str, str]] = {}
        self.shown: list[dict[str, Any]] = []
        self.left_out: list[LeftOut] = []
        self.searches = False
        """Same as `ToolSet.searches`."""
        self.may_replace = False
        """True: a tool replaces an earlier one of the same name."""

    def read_all(self, tools: object, path: str) -> None:
        if not isinstance(tools, list):
            raise BadRequest(f"{path} must be a list.", param=path)
        for at, tool in enumerate(tools):
            shown = self._read(tool, f"{path}[{at}]")
            if shown is not None:
                self.shown.append(shown)

    def _read(self, tool: object, path: str) -> dict[str, Any] | None:
        """Returns the tool as the response repeats it; None if it is left out."""
        kind = _kind(tool, path)
        if kind == "namespace":
            return self._namespace(tool, path)
        if kind == SEARCH and isinstance(tool, dict) and not is_hosted(tool):
            return self._search(tool, path)
        return self._tool(tool, path, None)

    def _search(self, tool: dict[str, Any], path: str) -> dict[str, Any]:
        body: _ToolSearchBody = _validated(_ToolSearchBody, tool, path)
        given = _SEARCHED if body.parameters is None else body.parameters
        about = body.description or "Finds tools that can be called then."
        definition = {"name": SEARCH, "description": about}
        definition["parameters"] = tool_schema(given, f"{path}.parameters")
        self._add(Tool(definition, f"{path}.parameters"), SEARCH, None, path)
        self.searches = True
        return {**definition, "type": SEARCH, "execution": "client"}

    def _namespace(self, tool: object, path: str) -> dict[str, Any] | None:
        body = _validated(_NamespaceBody, tool, path)
        shown: list[dict[str, Any]] = []
        for at, inner in enumerate(body.tools):
            # The model sees no namespaces, so the first tool has the namespace's description.
            about = f"{body.name}: {body.description}" if body.description and not shown else ""
            each = self._tool(inner, f"{path}.tools[{at}]", body.name, about)
            if each is not None:
                shown.append(each)
        if not shown:
            return None
        return {
            "type": "namespace",
            "name": body.name,
            "description": body.description,
            "tools": shown,
        }

    def _tool(
        self, tool: object, path: str, namespace: str | None, about: str = ""
    ) -> dict[str, Any] | None:
        kind = _kind(tool, path)
        if kind == "function":
            return self._function(tool, path, namespace, about)
        if kind == "custom":
            return self._custom(tool, path, namespace, about)
        assert isinstance(tool, dict)
        hosted = hosted_tool(tool, path)
        if hosted is None:
            raise _not_declared(kind, path)
        self.left_out.append(hosted)
        return None

    def _function(
        self, tool: object, path: str, namespace: str | None, about: str
    ) -> dict[str, Any]:
        body = _validated(_FunctionToolBody, tool, path)
        _refuse_options(body, path)
        definition = _definition(body, model_name(body.name, namespace), about, path)
        self._add(Tool(definition, f"{path}.parameters"), body.name, namespace, path)
        shown: dict[str, Any] = {"type": "function", "name": body.name}
        shown |= {"description": body.description, "parameters": body.parameters}
        shown["strict"] = body.strict
        if body.output_schema is not None:
            shown["output_schema"] = body.output_schema
        return shown

    def _custom(self, tool: object, path: str, namespace: str | None, about: str) -> dict[str, Any]:
        body = _validated(_CustomToolBody, tool, path)
        grammar = read_format(body.format, f"{path}.format")
        description = "\n\n".join(filter(None, (about, body.description)))
        made = custom_tool(model_name(body.name, namespace), description, grammar, path)
        self._add(made, body.name, namespace, path)
        shown = {"type": "custom", "name": body.name, "description": body.description}
        return {**shown, "format": body.format or {"type": "text"}}

    def _add(self, tool: Tool, name: str, namespace: str | None, path: str) -> None:
        if tool.name in self.tools and not self.may_replace:
            raise BadRequest(f"{path}.name is the name of two tools.", param=f"{path}.name")
        self.tools[tool.name] = tool
        self.namespaces.pop(tool.name, None)
        if namespace is not None:
            self.namespaces[tool.name] = (namespace, name)


def _definition(body: _FunctionToolBody, name: str, about: str, path: str) -> dict[str, Any]:
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


def _refuse_options(body: _FunctionToolBody, path: str) -> None:
    if body.allowed_callers is not None and "direct" not in body.allowed_callers:
        raise unsupported("functions that only programs call", f"{path}.allowed_callers")
    if (body.model_extra or {}).get("async"):
        raise unsupported("functions that run in parallel with the response", f"{path}.async")


def _not_declared(kind: str, path: str) -> Unsupported:
    return Unsupported(
        f"This version of mlx-fleet supports functions and custom tools; {kind} is neither.",
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
