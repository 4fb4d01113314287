"""Converts a request's tools to a form that one chat template supports.

Templates render schemas with programs of their own, and many support only part of JSON Schema. A
tool is passed unchanged if the template renders it; otherwise in the first of several simpler forms
that it renders. Only the prompt has that form: calls are parsed by the client's schema.
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
"""Most tools whose form is cached; above it, the cache is cleared."""

Function = dict[str, Any]
"""OpenAI's function definition."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords of JSON Schema whose value maps names to schemas."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")

_encode = msgspec.json.Encoder().encode


class TemplateTools:
    """The tools for one template. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate, abilities: Abilities) -> None:
        self._abilities = abilities
        self._probe = Probe(template, abilities.only_parts)
        self._turns = [system(), user()] if abilities.tools_with_system else [user()]
        self._known: dict[bytes, int] = {}

    def listed(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Returns the tools for the template; none if it does not describe tools. Raises
        `BadRequest` for a tool that it renders in no form."""
        if not tools or not self._abilities.tools:
            return [] if self._abilities.empty_tools else None
        return [{"type": "function", "function": self._spelled(tool)} for tool in tools]

    def _spelled(self, tool: Tool) -> Function:
        given = dict(tool.function)
        # Each tool is tested once: a session sends the same ones with every request.
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
            f"The model's chat template does not support the tool {given['name']}.", param="tools"
        )


# --- forms -----------------------------------------------------------------------------------


def _as_given(function: Function) -> Function:
    return function


def _complete(function: Function) -> Function:
    """Adds a missing description and missing parameters and properties."""
    parameters = function.get("parameters")
    made = {"type": "object", "properties": {}}
    made |= parameters if isinstance(parameters, dict) else {}
    properties = made["properties"]
    made["properties"] = properties if isinstance(properties, dict) else {}
    return {"name": function["name"], "description": "", **function, "parameters": made}


def _described(function: Function) -> Function:
    """Adds a missing description to each property."""
    made = _complete(function)
    properties = {
        name: {**schema, "description": schema.get("description", "")}
        if isinstance(schema, dict)
        else schema
        for name, schema in made["parameters"]["properties"].items()
    }
    return {**made, "parameters": {**made["parameters"], "properties": properties}}


def _single_typed(function: Function) -> Function:
    """Reduces each union of types to one type."""
    made = _described(function)
    return {**made, "parameters": _with_single_types(made["parameters"])}


def _in_words(function: Function) -> Function:
    """Moves the schema as text into the description."""
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
"""From the client's own form to the simplest."""


def _with_single_types(schema: Any) -> Any:
    """Reduces each union of types in the schema to its first type that is not null. What is not a
    schema stays as it is."""
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
