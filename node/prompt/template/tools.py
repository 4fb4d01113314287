"""A request's tools as one chat template can take them.

Templates spell schemas with programs of their own, and many know only some of what JSON Schema
allows. A tool goes in as it is, if the template spells it; else in the first of simpler forms that
the template does spell. Only the prompt has that form: answers are read by the client's schema.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from node.errors import BadRequest
from node.prompt.template.abilities import Abilities
from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.probe import NAME, Probe, system, user
from node.request import Tool

MAX_KNOWN = 4096
"""Most tools whose form is remembered; then all are forgotten."""

Function = dict[str, Any]
"""OpenAI's definition."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords of JSON Schema that hold schemas by name."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")

_encode = msgspec.json.Encoder().encode


class TemplateTools:
    """One template's tools. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate, abilities: Abilities) -> None:
        self._abilities = abilities
        self._probe = Probe(template, abilities.only_parts)
        self._turns = [system(), user()] if abilities.tools_with_system else [user()]
        self._known: dict[bytes, int] = {}

    def listed(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """For the template, if it describes tools. Raises `BadRequest` for one that it takes in no
        form."""
        if not tools or not self._abilities.tools:
            return [] if self._abilities.empty_tools else None
        return [{"type": "function", "function": self._spelled(tool)} for tool in tools]

    def _spelled(self, tool: Tool) -> Function:
        given = dict(tool.function)
        # Each tool is tried once: a session sends the same ones with every request.
        key = blake2b(_encode(given), digest_size=16).digest()
        form = self._known.get(key)
        if form is None:
            form = self._first_taken(given)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = form
        return _FORMS[form](given)

    def _first_taken(self, given: Function) -> int:
        for number, form in enumerate(_FORMS):
            if self._probe.shows(self._turns, NAME, tools={**form(given), "name": NAME}):
                return number
        raise BadRequest(
            f"The model's chat template does not take the tool {given['name']}.", param="tools"
        )


# --- forms -----------------------------------------------------------------------------------


def _as_given(function: Function) -> Function:
    return function


def _complete(function: Function) -> Function:
    """With a description and parameters, and those with properties."""
    parameters = function.get("parameters")
    made = {"type": "object", "properties": {}}
    made |= parameters if isinstance(parameters, dict) else {}
    properties = made["properties"]
    made["properties"] = properties if isinstance(properties, dict) else {}
    return {"name": function["name"], "description": "", **function, "parameters": made}


def _described(function: Function) -> Function:
    """With a description of each property."""
    made = _complete(function)
    properties = {
        name: {**schema, "description": schema.get("description", "")}
        if isinstance(schema, dict)
        else schema
        for name, schema in made["parameters"]["properties"].items()
    }
    return {**made, "parameters": {**made["parameters"], "properties": properties}}


def _single_typed(function: Function) -> Function:
    """With one type where the schema allows several."""
    made = _described(function)
    return {**made, "parameters": _with_single_types(made["parameters"])}


def _in_words(function: Function) -> Function:
    """With the schema as text in the description."""
    schema = json.dumps(function.get("parameters", {}), ensure_ascii=False)
    text = f"{function.get('description', '')}\n\nIts parameters as JSON Schema: {schema}".lstrip()
    return {**function, "description": text, "parameters": {"type": "object", "properties": {}}}


_FORMS: tuple[Callable[[Function], Function], ...] = (
    _as_given,
    _complete,
    _described,
    _single_typed,
    _in_words,
)
"""From the client's own to the simplest."""


def _with_single_types(schema: Any) -> Any:
    """The first type of each union that is not null, in all of the schema. What is no schema stays
    as it is."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: _with_single_type(key, value) for key, value in schema.items()}


def _with_single_type(key: str, value: Any) -> Any:
    if key == "type" and isinstance(value, list):
        return next((each for each in value if each != "null"), "null")
    if key in _MAPS and isinstance(value, Mapping):
        return {name: _with_single_types(each) for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_with_single_types(each) for each in value]
    return _with_single_types(value) if key in _SCHEMAS else value
