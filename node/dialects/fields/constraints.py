"""Parses the fields of a body that constrain the response's text (structured output) into a
`Constraint`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from node.dialects.fields.field_table import Lenient, unsupported
from node.errors import BadRequest
from node.ipc.generate import Constraint, ConstraintKind
from node.parsing.constraints.schema import LONGEST_SCHEMA

MAX_SCHEMA_LENGTH = LONGEST_SCHEMA
"""Most characters of a schema, a pattern, a list of choices or a grammar."""


class ConstraintFields(Lenient):
    """All fields that set a constraint; a body may use one of them."""

    response_format: object = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: object = None
    guided_regex: object = None
    guided_choice: object = None
    guided_grammar: object = None


_ONE = "A request may have only one of these fields, `response_format` and `structured_outputs`."
CONSTRAINT_NOTES: Mapping[str, str] = {
    "response_format": (
        "text; json_object, or with a `schema` one that fits it; or json_schema, to whose `schema` "
        "the text is always constrained: a `strict` of false changes nothing, and `name` may be "
        "omitted. Reasoning is not constrained."
    ),
    "structured_outputs": (
        "One of `json`, `regex`, `choice`, `grammar` (Lark) and `json_object`. Other members are "
        "refused."
    ),
    "guided_json": f"A JSON schema, or the text of one. {_ONE}",
    "guided_regex": f"A regular expression that all of the text matches. {_ONE}",
    "guided_choice": f"A list of texts, one of which is the response. {_ONE}",
    "guided_grammar": f"A grammar in Lark's notation. {_ONE}",
}
"""Notes for a dialect's `FieldTable`."""


def json_object(param: str) -> Constraint:
    """Returns a constraint to any JSON object."""
    return Constraint(ConstraintKind.JSON_OBJECT, param)


def json_schema(schema: object, param: str) -> Constraint:
    """Returns a constraint to JSON that fits `schema`, the value of the field `param`. Raises
    `BadRequest`."""
    if not isinstance(schema, Mapping):
        raise BadRequest(f"{param} must be a JSON schema, an object.", param=param)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise BadRequest(f"{param} has a number that is not finite.", param=param) from None
    return _constraint(ConstraintKind.JSON_SCHEMA, text, param)


def regex(pattern: object, param: str) -> Constraint:
    """Returns a constraint to text that matches the whole pattern. Raises `BadRequest`."""
    return _constraint(ConstraintKind.REGEX, _text(pattern, param), param)


def lark(grammar: object, param: str) -> Constraint:
    """Returns a constraint to text of a Lark grammar. Raises `BadRequest`."""
    return _constraint(ConstraintKind.LARK, _text(grammar, param), param)


def choice(texts: object, param: str) -> Constraint:
    """Returns a constraint to one of several texts. Raises `BadRequest`."""
    is_list = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
    if not texts or not is_list:
        raise BadRequest(f"{param} must be a list of texts, none empty.", param=param)
    return _constraint(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False), param)


def response_format(value: object, param: str = "response_format") -> Constraint | None:
    """Returns the constraint of OpenAI's format object; None for the type `text`. Its schema lies
    under `json_schema`, or beside the type as in `/v1/responses`. Raises `BadRequest` or
    `Unsupported`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadRequest(f"{param} must be an object.", param=param)
    kind = value.get("type")
    if not isinstance(kind, str):
        raise BadRequest(f"{param}.type must be a string.", param=f"{param}.type")
    if kind == "text":
        return None
    if kind not in ("json_schema", "json_object"):
        raise unsupported(f"the type {kind!r} of {param}", f"{param}.type")
    schema, path = _format_schema(value, param)
    if kind == "json_schema":
        if schema is None:
            raise BadRequest(f"{path} has no schema.", param=path)
        return json_schema(schema, f"{path}.schema")
    # Other servers accept a schema with json_object too.
    is_any = schema is None or schema == {}
    return json_object(param) if is_any else _object_schema(schema, f"{path}.schema")


def format_owner(value: Mapping[str, Any], param: str) -> tuple[Mapping[str, Any], str]:
    """Returns the object that has the format's name and schema, and that object's path: the format
    itself, or its `json_schema`. Raises `BadRequest`."""
    nested = value.get("json_schema")
    if nested is not None and not isinstance(nested, Mapping):
        raise BadRequest(f"{param}.json_schema must be an object.", param=f"{param}.json_schema")
    return (value, param) if nested is None else (nested, f"{param}.json_schema")


def _format_schema(value: Mapping[str, Any], param: str) -> tuple[object, str]:
    """Returns the schema, None if there is none, and the path of the object that has it."""
    owner, path = format_owner(value, param)
    return owner.get("schema"), path


def _object_schema(schema: object, param: str) -> Constraint:
    """Returns a constraint to an object that fits the schema. Raises `BadRequest`."""
    if isinstance(schema, Mapping):
        kind = schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise BadRequest(
                f"{param} must be the schema of an object, with a format of json_object.",
                param=param,
            )
        schema = {**schema, "type": "object"}
    return json_schema(schema, param)


def read_constraint(fields: ConstraintFields) -> Constraint | None:
    """Returns the constraint of a body, None if it has none. Raises `BadRequest` if a body has two
    or an invalid one, and `Unsupported`."""
    found = [response_format(fields.response_format)]
    if fields.structured_outputs is not None:
        found += _structured(fields.structured_outputs)
    for name, read in _GUIDES.items():
        value = getattr(fields, f"guided_{name}")
        if value is not None:
            found.append(read(value, f"guided_{name}"))
    constraints = [each for each in found if each is not None]
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        raise BadRequest(
            f"{second} is not allowed together with {first}: a response can have one constraint.",
            param=second,
        )
    return constraints[0] if constraints else None


def _structured(value: Mapping[str, Any]) -> list[Constraint | None]:
    found: list[Constraint | None] = []
    for name, each in value.items():
        path = f"structured_outputs.{name}"
        if name in _GUIDES:
            found.append(None if each is None else _GUIDES[name](each, path))
        elif name == "json_object":
            found.append(json_object(path) if each else None)
        elif each and name != "disable_fallback":
            # This server has no fallback that could be disabled; the other options change what the
            # grammar allows.
            raise unsupported(path, path)
    return found


def _json(value: object, param: str) -> Constraint:
    if not isinstance(value, str):
        return json_schema(value, param)
    _refuse_long(value, param)
    try:
        # As strict as the parser of the body; Python's own accepts halves of surrogate pairs.
        schema = _ANY_JSON.validate_json(value)
    except ValidationError:
        raise BadRequest(f"{param} is not valid JSON.", param=param) from None
    return json_schema(schema, param)


_ANY_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_GUIDES: Mapping[str, Callable[[object, str], Constraint]] = {
    "json": _json,
    "regex": regex,
    "choice": choice,
    "grammar": lark,
}


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{param} must be a text that is not empty.", param=param)
    return value


def _constraint(kind: ConstraintKind, text: str, param: str) -> Constraint:
    _refuse_long(text, param)
    return Constraint(kind, param, text)


def _refuse_long(text: str, param: str) -> None:
    if len(text) > MAX_SCHEMA_LENGTH:
        raise BadRequest(f"{param} has more than {MAX_SCHEMA_LENGTH} characters.", param=param)
