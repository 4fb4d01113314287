"""Expressions of calls as JSON, which the formats put between their markers.

White space may stand wherever JSON allows it, so that a model can lay out a call as it was trained.
"""

import json
import re
from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.constraints.arguments import object_of_arguments
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint

_NAMES = ("name",)
_ARGUMENTS = ("arguments",)


def arguments_of(lark: Lark, tool: ToolSchema) -> str:
    """Returns the expression of an object that fits the tool's parameters. Raises
    `UnsupportedConstraint`."""
    return lark.json(object_of_arguments(tool), tool.param)


def bare_name(tool: ToolSchema, characters: "re.Pattern[str]") -> str:
    """Returns the tool's name, to be written without quotes. Raises `UnsupportedConstraint` for a
    name with other characters, which would not be read back."""
    if not tool.name or not characters.fullmatch(tool.name):
        raise UnsupportedConstraint(
            f"The model cannot write the name {tool.name} of a tool.", tool.param
        )
    return tool.name


def call_object(
    lark: Lark,
    tool: ToolSchema,
    names: Sequence[str] = _NAMES,
    arguments: Sequence[str] = _ARGUMENTS,
    *more: str,
) -> str:
    """Returns the expression of `{"name": "f", "arguments": {…}}` with one of the keys `names` and
    one of `arguments`; `more` are expressions that may follow the arguments. Raises
    `UnsupportedConstraint`."""
    space = lark.space()
    return lark.rule(
        " ".join(
            (
                lark.text("{"),
                space,
                _key(lark, names),
                lark.text(json.dumps(tool.name, ensure_ascii=False)),
                space,
                lark.text(","),
                space,
                _key(lark, arguments),
                arguments_of(lark, tool),
                *map(lark.optional, more),
                space,
                lark.text("}"),
            )
        )
    )


def call_objects(
    lark: Lark,
    tools: Sequence[ToolSchema],
    names: Sequence[str] = _NAMES,
    arguments: Sequence[str] = _ARGUMENTS,
    *more: str,
) -> str:
    """Returns the expression of one such object for any of the tools. Raises
    `UnsupportedConstraint`."""
    return lark.one_of([call_object(lark, tool, names, arguments, *more) for tool in tools])


def list_of(lark: Lark, call: str, *, parallel: bool, begin: str = "[") -> str:
    """Returns the expression of a JSON list of one `call`, or of several if `parallel`. The list
    begins with the text `begin`."""
    space = lark.space()
    calls = lark.many(call, f"{space} {lark.text(',')} {space}") if parallel else call
    return " ".join((lark.text(begin), space, calls, space, lark.text("]")))


def between(lark: Lark, opener: str, body: str, closer: str) -> str:
    """Returns the expression of a body between markers; the closer may be empty."""
    parts = [lark.text(opener), lark.space(), body]
    if closer:
        parts += [lark.space(), lark.text(closer)]
    return " ".join(parts)


def blocks(lark: Lark, block: str, *, parallel: bool) -> str:
    """Returns the expression of one block, or of several in a row if `parallel`."""
    return lark.many(block, lark.space()) if parallel else block


def _key(lark: Lark, keys: Sequence[str]) -> str:
    """Returns the expression of one of the keys with the colon."""
    space = lark.space()
    key = lark.one_of([lark.text(json.dumps(each)) for each in keys])
    return f"{key} {space} {lark.text(':')} {space}"
