"""The tools of a chat: which functions the model may call."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from node.dialects.body import Lenient, unsupported
from node.errors import BadRequest, Unsupported
from node.request import Tool

NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,128}$"


class FunctionBody(Lenient):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Lenient):
    type: str
    function: FunctionBody | None = None


def read_tools(bodies: Sequence[ToolBody], field: str = "tools") -> tuple[Tool, ...]:
    """The tools of `field`. Raises `BadRequest`, or `Unsupported` for what is no function."""
    functions = [_function(body, f"{field}[{at}]") for at, body in enumerate(bodies)]
    return _tools(functions, field, ".function")


def read_functions(bodies: Sequence[FunctionBody]) -> tuple[Tool, ...]:
    """The tools of the older field `functions`. Raises `BadRequest`."""
    return _tools(bodies, "functions", "")


def wants_no_calls(choice: object, field: str) -> bool:
    """Whether `choice`, the value of `field`, wants no calls. Raises `Unsupported` for one that
    forces a call or narrows the tools, and `BadRequest` for what is no choice."""
    if choice is None or choice in ("auto", "none"):
        return choice == "none"
    if choice == "required" or isinstance(choice, Mapping):
        raise Unsupported(
            f"This version of mlx-fleet supports only auto and none for {field}: "
            "the model cannot yet be made to call a function.",
            param=field,
        )
    raise BadRequest(f"{field} must be none or auto.", param=field)


def json_without_null(value: Any, path: str) -> Any:
    """The value without the fields that are null, deeply; a list keeps its nulls, which mean
    something in a schema's `enum`. Raises `BadRequest` for numbers that JSON's readers do not
    share."""
    if isinstance(value, dict):
        return {
            key: json_without_null(each, path) for key, each in value.items() if each is not None
        }
    if isinstance(value, list):
        return [json_without_null(each, path) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadRequest(f"{path} holds an integer of more than 64 bits.", param=path)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path} holds a number that is not finite.", param=path)
    return value


def _function(body: ToolBody, path: str) -> FunctionBody:
    if body.type != "function":
        raise unsupported(f"tools of type {body.type}", f"{path}.type")
    if body.function is None:
        raise BadRequest(f"{path}.function is missing.", param=f"{path}.function")
    return body.function


def _tools(bodies: Sequence[FunctionBody], field: str, inner: str) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for at, body in enumerate(bodies):
        path = f"{field}[{at}]{inner}"
        if body.name in tools:
            raise BadRequest(f"{path}.name is the name of two tools.", param=f"{path}.name")
        tools[body.name] = _tool(body, f"{path}.parameters")
    return tuple(tools.values())


def _tool(body: FunctionBody, path: str) -> Tool:
    function: dict[str, Any] = {"name": body.name}
    if body.description is not None:
        function["description"] = body.description
    if body.parameters is not None:
        function["parameters"] = json_without_null(body.parameters, path)
    if body.strict is not None:
        function["strict"] = body.strict
    return Tool(function)
