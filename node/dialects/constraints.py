"""What a body holds the answer's text to, as a `Constraint`."""

import json
from collections.abc import Mapping

from node.dialects.body import unsupported
from node.errors import BadRequest
from node.generate import Constraint, ConstraintKind

MAX_SCHEMA_LENGTH = 512 * 1024
"""Characters of a schema or a grammar."""


def json_object(param: str) -> Constraint:
    """Any JSON object."""
    return Constraint(ConstraintKind.JSON_OBJECT, param)


def json_schema(schema: object, param: str) -> Constraint:
    """JSON that fits the schema of the field `param`. Raises `BadRequest`."""
    if not isinstance(schema, Mapping):
        raise BadRequest(f"{param} must be a JSON schema, an object.", param=param)
    return _constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def regex(pattern: object, param: str) -> Constraint:
    """Text that matches the whole pattern. Raises `BadRequest`."""
    return _constraint(ConstraintKind.REGEX, _text(pattern, param), param)


def lark(grammar: object, param: str) -> Constraint:
    """Text of a Lark grammar. Raises `BadRequest`."""
    return _constraint(ConstraintKind.LARK, _text(grammar, param), param)


def choice(texts: object, param: str) -> Constraint:
    """One of several texts. Raises `BadRequest`."""
    is_list = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
    if not texts or not is_list:
        raise BadRequest(f"{param} must be a list of texts, none empty.", param=param)
    return _constraint(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False), param)


def response_format(value: object, param: str = "response_format") -> Constraint | None:
    """Of OpenAI's object with a `type`, whose schema lies under `json_schema`, or beside the type
    as in `/v1/responses`. Raises `BadRequest` or `Unsupported`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadRequest(f"{param} must be an object.", param=param)
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_object(param)
    if kind != "json_schema":
        raise unsupported(f"the type {kind!r} of {param}", f"{param}.type")
    nested = value.get("json_schema")
    if isinstance(nested, Mapping):
        return json_schema(nested.get("schema"), f"{param}.json_schema.schema")
    return json_schema(value.get("schema"), f"{param}.schema")


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{param} must be a text that is not empty.", param=param)
    return value


def _constraint(kind: ConstraintKind, text: str, param: str) -> Constraint:
    if len(text) > MAX_SCHEMA_LENGTH:
        raise BadRequest(f"{param} has more than {MAX_SCHEMA_LENGTH} characters.", param=param)
    return Constraint(kind, param, text)
