"""The tools that a response may or must call: OpenAI's `tool_choice`, for all dialects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.dialects.fields.field_table import unsupported
from node.errors import BadRequest, Unsupported
from node.protocol.chain.tools import is_hosted
from node.request import LeftOut, Tool


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The tools that a body declares."""

    tools: tuple[Tool, ...] = ()
    """The tools as the model sees them."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def custom(self) -> frozenset[str]:
        """Names of custom tools, whose input is text."""
        return frozenset(tool.name for tool in self.tools if tool.is_custom)


def hosted_tool(tool: Mapping[str, Any], path: str) -> LeftOut | None:
    """Returns the tool if only its host could run it (a hosted tool), else None."""
    if not is_hosted(tool):
        return None
    name = tool.get("name")
    return LeftOut(path, str(tool["type"]), name if isinstance(name, str) else "")


def forced_hosted(kind: str, field: str) -> Unsupported:
    """Returns the error for a body whose `field` forces a tool that only its host could run."""
    return Unsupported(
        f"{field} forces {kind}, which only a host could run; this version of mlx-fleet runs no "
        "tools itself.",
        param=field,
    )


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The parsed choice. All fields but the first are as in `TextRequest`."""

    shows_tools: bool = True
    """False: the model is not shown any tools, and no calls are parsed from its output."""
    must_call: bool = False
    callable_tools: tuple[str, ...] | None = None
    is_single: bool = False
    """True: exactly one call, since a tool was named."""


STRICT_NOTE = (
    "Arguments are typed by the schema. They are constrained to it if a call is forced, and with "
    "`strict` if calls of the model's family begin with a special token "
    "([engine.md](engine.md#constraints)); otherwise `strict` is only shown to the model. "
    "A strict schema that cannot be enforced is a 400 everywhere."
)
"""A note on the arguments of calls, for the `FieldTable` of each dialect."""

HOSTED_NOTE = (
    "Those that only a host could run are [left out](#tools-that-only-a-host-could-run) unless "
    "they are forced."
)
"""A note on tools of other types, for the `FieldTable` of each dialect."""

AUTO = ToolChoice()
NO_CALLS = ToolChoice(shows_tools=False)


def required(declared: DeclaredTools, field: str) -> ToolChoice:
    """Forces a call of any tool. Raises `BadRequest` if there is none, `Unsupported` if all are
    hosted."""
    if not declared.tools and declared.left_out:
        raise forced_hosted(declared.left_out[0].kind, field)
    if not declared.tools:
        raise BadRequest(f"{field} requires a call, but there are no tools.", param=field)
    return ToolChoice(must_call=True)


def named(name: str, declared: DeclaredTools, field: str) -> ToolChoice:
    """Forces a call of this tool. Raises `BadRequest` for an unknown name, `Unsupported` for a
    hosted tool."""
    names = _known([name], declared, field)
    return ToolChoice(must_call=True, callable_tools=names, is_single=True)


def allowed(names: Sequence[str], declared: DeclaredTools, field: str, *, must: bool) -> ToolChoice:
    """Allows only these tools; with `must`, forces a call of one. Raises as `named`."""
    if not names:
        raise BadRequest(f"{field} allows no tools.", param=field)
    return ToolChoice(must_call=must, callable_tools=_known(names, declared, field))


def hosted_only(kind: str, field: str, *, must: bool) -> ToolChoice:
    """Returns the choice for a list of allowed tools that are all hosted. Raises `Unsupported` if
    one must be called."""
    if must:
        raise forced_hosted(kind, field)
    return ToolChoice(callable_tools=())


def check_arguments(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises `BadRequest` for a tool whose arguments are constrained to a schema that allows no
    object, and `Unsupported` for a forced tool whose grammar the engine cannot enforce."""
    if not choice.shows_tools:
        return
    for tool in tools:
        is_callable = choice.callable_tools is None or tool.name in choice.callable_tools
        if is_callable and choice.must_call and tool.is_unenforceable:
            raise unsupported("a forced call of a tool with this grammar", tool.param)
        is_held = choice.must_call or tool.function.get("strict") is True
        if is_callable and is_held and _excludes_objects(tool.parameters):
            raise BadRequest(
                f"{tool.param} must be the schema of an object, since the arguments of a call are "
                "an object.",
                param=tool.param,
            )


def _excludes_objects(schema: Mapping[str, object]) -> bool:
    kind = schema.get("type")
    return "object" not in kind if isinstance(kind, list) else kind not in (None, "object")


def _known(names: Sequence[str], declared: DeclaredTools, field: str) -> tuple[str, ...]:
    known = {tool.name for tool in declared.tools}
    for name in names:
        if name in known:
            continue
        if any(name == each.name for each in declared.left_out):
            raise forced_hosted(name, field)
        raise BadRequest(f"{field} names {name!r}, which is none of the tools.", param=field)
    return tuple(dict.fromkeys(names))
