"""Which tools an answer may call, and whether it must: OpenAI's `tool_choice`, in words of no
dialect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.dialects.fields.field_table import unsupported
from node.errors import BadRequest, Unsupported
from node.protocol.tools import is_hosted
from node.request import LeftOut, Tool


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """What a body says of tools."""

    tools: tuple[Tool, ...] = ()
    """As the model gets them."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def custom(self) -> frozenset[str]:
        """Names of those that are answered with text."""
        return frozenset(tool.name for tool in self.tools if tool.is_custom)


def hosted_tool(tool: Mapping[str, Any], path: str) -> LeftOut | None:
    """A tool that only a host could run; None for another one."""
    if not is_hosted(tool):
        return None
    name = tool.get("name")
    return LeftOut(path, str(tool["type"]), name if isinstance(name, str) else "")


def forced_hosted(kind: str, field: str) -> Unsupported:
    """That the body's `field` forces a tool which only a host could run."""
    return Unsupported(
        f"{field} forces {kind}, which only a host could run; this version of mlx-fleet runs no "
        "tools itself.",
        param=field,
    )


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Fields as in `TextRequest`, but for the first."""

    shows_tools: bool = True
    """False: the model is shown none, and none are read out of the answer."""
    must_call: bool = False
    callable_tools: tuple[str, ...] | None = None
    is_single: bool = False
    """One call and no more: a tool was named."""


STRICT_NOTE = (
    "Arguments are typed by the schema. They are held to it where a call is forced, and with "
    "`strict` where the family's calls begin with a token of their own "
    "([engine.md](engine.md#constraints)); elsewhere `strict` is shown to the model only. "
    "A strict schema that cannot be held is a 400 everywhere."
)
"""Of the arguments of calls, for the `FieldTable` of each dialect."""

HOSTED_NOTE = (
    "Those that only a host could run are [left out](#tools-that-only-a-host-could-run) where they "
    "are not forced."
)
"""Of tools of other types, for the same."""

AUTO = ToolChoice()
NO_CALLS = ToolChoice(shows_tools=False)


def required(declared: DeclaredTools, field: str) -> ToolChoice:
    """Any of the tools. Raises `BadRequest` where there is none, `Unsupported` where hosts have
    them all."""
    if not declared.tools and declared.left_out:
        raise forced_hosted(declared.left_out[0].kind, field)
    if not declared.tools:
        raise BadRequest(f"{field} demands a call, and there are no tools.", param=field)
    return ToolChoice(must_call=True)


def named(name: str, declared: DeclaredTools, field: str) -> ToolChoice:
    """This tool. Raises `BadRequest` for a name that no tool has, `Unsupported` for a host's."""
    names = _known([name], declared, field)
    return ToolChoice(must_call=True, callable_tools=names, is_single=True)


def allowed(names: Sequence[str], declared: DeclaredTools, field: str, *, must: bool) -> ToolChoice:
    """Only these; `must`: one of them. Raises as `named`."""
    if not names:
        raise BadRequest(f"{field} allows no tools.", param=field)
    return ToolChoice(must_call=must, callable_tools=_known(names, declared, field))


def hosted_only(kind: str, field: str, *, must: bool) -> ToolChoice:
    """Tools of which only a host could run any. Raises `Unsupported` where one must be called."""
    if must:
        raise forced_hosted(kind, field)
    return ToolChoice(callable_tools=())


def check_arguments(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises `BadRequest` for a tool whose arguments are to be held to a schema of no object, and
    `Unsupported` for a forced one whose grammar cannot be held."""
    if not choice.shows_tools:
        return
    for tool in tools:
        is_callable = choice.callable_tools is None or tool.name in choice.callable_tools
        if is_callable and choice.must_call and tool.is_unheld:
            raise unsupported("a forced call of a tool with such a grammar", tool.param)
        is_held = choice.must_call or tool.function.get("strict") is True
        if is_callable and is_held and _excludes_objects(tool.parameters):
            raise BadRequest(
                f"{tool.param} must be the schema of an object, as the arguments of a call are "
                "one.",
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
