"""Reads an output, and proves that it reads the same however it is cut."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from node.dialects.base import Collected
from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser

Calls = tuple[tuple[str, Any], ...]
"""(name, arguments) of each."""
Tools = Mapping[str, Mapping[str, Any]]

TOOLS: Tools = {
    "find": {
        "type": "object",
        "properties": {
            "where": {"type": "string"},
            "depth": {"type": "integer"},
            "exact": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
            "filter": {"type": "object"},
        },
    },
    "ping": {"type": "object", "properties": {}},
}
"""The tools that may be called where a test does not set otherwise."""


class Parsed(NamedTuple):
    """A parsed output, without the white space around it."""

    content: str = ""
    reasoning: str = ""
    calls: Calls = ()


def read(
    text: str,
    *,
    reasoning: str = "none",
    tool_calls: str = "none",
    tools: Tools = TOOLS,
    tail: str = "",
) -> Parsed:
    """Parses the text, whole and cut in two anywhere, to one result."""
    form = output_format(reasoning=reasoning, tool_calls=tool_calls, tools=tools, tail=tail)
    whole = parsed(form, [text])
    for at in range(1, len(text)):
        assert parsed(form, (text[:at], text[at:])) == whole, f"cut before {text[at:]!r}"
    assert parsed(form, text) == whole
    return whole


def output_format(
    *,
    reasoning: str = "none",
    tool_calls: str = "none",
    tools: Tools = TOOLS,
    tail: str = "",
) -> OutputFormat:
    """The format of an output of these tools."""
    schemas = tuple(ToolSchema(name, dict(schema)) for name, schema in tools.items())
    return OutputFormat(reasoning, tool_calls, tail, schemas)


def parsed(form: OutputFormat, pieces: Iterable[str]) -> Parsed:
    """Parses an output that arrives in these pieces."""
    collected = collect(form, pieces)
    return Parsed(
        collected.text(PartKind.CONTENT).strip(),
        collected.text(PartKind.REASONING).strip(),
        tuple((each.name, json.loads(each.text)) for each in collected.calls),
    )


def collect(form: OutputFormat, pieces: Iterable[str]) -> Collected:
    """All parts of an output that arrives in these pieces."""
    machine, collected = OutputParser(form), Collected()
    for piece in pieces:
        collected.add(machine.feed(piece))
        if machine.ended:
            break
    collected.add(machine.finish())
    return collected
