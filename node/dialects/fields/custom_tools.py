"""Custom tools: tools whose input is text, which a grammar may constrain.

The model sees each as a function with that text as its only argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.dialects.fields.constraints import MAX_SCHEMA_LENGTH
from node.dialects.fields.custom_input import INPUT, PARAMETERS
from node.dialects.fields.field_table import unsupported
from node.errors import BadRequest
from node.parsing.constraints.grammar_pattern import pattern_of
from node.request import Tool

_ABOUT_INPUT = "All of the text, as one string."
_SYNTAXES: Mapping[str, str] = {"lark": "Lark grammar", "regex": "regular expression"}


@dataclass(frozen=True, slots=True)
class InputGrammar:
    """The grammar that a custom tool's input must match."""

    syntax: str
    definition: str
    path: str
    """Path of the definition in the body."""


def read_format(value: object, path: str) -> InputGrammar | None:
    """Parses the field `format` of a custom tool, whose grammar lies within it or under `grammar`.
    Raises `BadRequest` or `Unsupported`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = value.get("type")
    if kind == "text":
        return None
    if kind != "grammar":
        raise unsupported(f"a format of type {kind!r}", f"{path}.type")
    owner, at = value, path
    if isinstance(value.get("grammar"), Mapping):
        owner, at = value["grammar"], f"{path}.grammar"
    return _grammar(owner, at)


def custom_tool(
    name: str, description: str | None, grammar: InputGrammar | None, path: str
) -> Tool:
    """Returns the tool as the model sees it. `path` is the tool's own in the body."""
    texts = [description or ""]
    if grammar is not None:
        about = _SYNTAXES[grammar.syntax]
        texts.append(f"`{INPUT}` is text that fits this {about}:\n{grammar.definition}")
    function: dict[str, Any] = {"name": name}
    if shown := "\n\n".join(filter(None, texts)):
        function["description"] = shown
    text = {"type": "string", "description": _ABOUT_INPUT}
    function["parameters"] = {**PARAMETERS, "properties": {INPUT: text}}
    if grammar is None:
        return Tool(function, path, is_custom=True)
    pattern = pattern_of(grammar.syntax, grammar.definition)
    is_unenforceable = pattern is None
    return Tool(
        function, grammar.path, is_custom=True, pattern=pattern, is_unenforceable=is_unenforceable
    )


def _grammar(value: Mapping[str, Any], path: str) -> InputGrammar:
    syntax, definition = value.get("syntax"), value.get("definition")
    if not isinstance(syntax, str) or syntax not in _SYNTAXES:
        raise BadRequest(f"{path}.syntax must be lark or regex.", param=f"{path}.syntax")
    path = f"{path}.definition"
    if not isinstance(definition, str) or not definition:
        raise BadRequest(f"{path} must be a text that is not empty.", param=path)
    if len(definition) > MAX_SCHEMA_LENGTH:
        raise BadRequest(f"{path} has more than {MAX_SCHEMA_LENGTH} characters.", param=path)
    return InputGrammar(syntax, definition, path)
