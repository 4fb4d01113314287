"""Which tools an answer may call, and whether it must: OpenAI's `tool_choice`, in words of no
dialect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.errors import BadRequest
from node.request import Tool


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
    "([engine.md](engine.md#what-holds-an-output)); elsewhere `strict` is shown to the model only. "
    "A strict schema that cannot be held is a 400 everywhere."
)
"""Of the arguments of calls, for the `FieldTable` of each dialect."""

AUTO = ToolChoice()
NO_CALLS = ToolChoice(shows_tools=False)


def required(tools: Sequence[Tool], field: str) -> ToolChoice:
    """Any of the tools. Raises `BadRequest` where there is none."""
    if not tools:
        raise BadRequest(f"{field} demands a call, and there are no tools.", param=field)
    return ToolChoice(must_call=True)


def named(name: str, tools: Sequence[Tool], field: str) -> ToolChoice:
    """This tool. Raises `BadRequest` for a name that no tool has."""
    return ToolChoice(must_call=True, callable_tools=_known([name], tools, field), is_single=True)


def allowed(names: Sequence[str], tools: Sequence[Tool], field: str, *, must: bool) -> ToolChoice:
    """Only these; `must`: one of them. Raises `BadRequest` for a name that no tool has."""
    if not names:
        raise BadRequest(f"{field} allows no tools.", param=field)
    return ToolChoice(must_call=must, callable_tools=_known(names, tools, field))


def check_arguments(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises `BadRequest` for a tool whose arguments are to be held to a schema of no object."""
    if not choice.shows_tools:
        return
    for tool in tools:
        is_callable = choice.callable_tools is None or tool.name in choice.callable_tools
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


def _known(names: Sequence[str], tools: Sequence[Tool], field: str) -> tuple[str, ...]:
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise BadRequest(f"{field} names {name!r}, which is none of the tools.", param=field)
    return tuple(dict.fromkeys(names))
