"""Reading bodies: fields that are applied, refused by name, or without any effect to have.

A dialect's `FieldTable` says which is which; reading and the documentation both go by it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError

from node.errors import BadRequest, BodyTooLarge, Unsupported
from node.protocol.json_size import TOO_MANY, has_too_many_values

MAX_INT = 2**31 - 1


class _FirstFault(FailFast):
    __hash__ = object.__hash__
    """Types with it are parts of unions."""


FIRST_FAULT = _FirstFault()
"""Of a list of a body, of whose faults one is told: no other is looked for, since each takes a
kilobyte of memory."""


class Lenient(BaseModel):
    """A JSON object whose other fields are kept and mean nothing by themselves."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


Body = TypeVar("Body", bound=Lenient)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that this version cannot honour."""

    is_neutral: Callable[[object], bool]
    """Whether a value asks for nothing; such values are taken."""
    taken: str
    """Those values in words, for the documentation and the caller: `null or 1`."""
    why: str = ""
    """More than that it is not supported, as a sentence; for the caller."""


def absent(value: object) -> bool:
    """Only null, or no field at all."""
    return value is None


def falsy(value: object) -> bool:
    """null, false, 0, and what is empty."""
    return not value


def off(value: object) -> bool:
    """Only null and false; not 0, which says something."""
    return value is None or value is False


def on(value: object) -> bool:
    """Only null and true."""
    return value is None or value is True


def only(*values: object) -> Callable[[object], bool]:
    """null, or one of these values; true and false are not 1 and 0."""
    return lambda value: (
        value is None or any(type(value) is type(each) and value == each for each in values)
    )


@dataclass(frozen=True, slots=True)
class FieldTable(Generic[Body]):
    """All top-level fields that a path knows; others are ignored."""

    body: type[Body]
    """Its fields are applied."""
    notes: Mapping[str, str]
    """How, for the documentation; by field, for all fields of `body`."""
    refused: Mapping[str, Refusal]
    ignored: Mapping[str, str]
    """Why there is nothing to apply, for the documentation: by field, those that only label a
    request or ask for what always happens."""

    def read(self, data: bytes) -> Body:
        """The validated body. Raises `BadRequest`, `BodyTooLarge`, or `Unsupported` for a refused
        field."""
        if has_too_many_values(data):
            raise BodyTooLarge(TOO_MANY)
        try:
            parsed = self.body.model_validate_json(data)
        except ValidationError as exc:
            refuse_invalid(exc)
        extra = parsed.model_extra or {}
        for name, refusal in self.refused.items():
            if not refusal.is_neutral(extra.get(name)):
                raise Unsupported(refusal.why or _not_taken(name, refusal.taken), param=name)
        return parsed


def _not_taken(name: str, taken: str) -> str:
    if taken == "null":
        return f"This version of mlx-fleet does not support {name}; leave it out."
    return f"This version of mlx-fleet does not support this value of {name}; it may be {taken}."


def refuse_invalid(exc: ValidationError, prefix: str = "") -> NoReturn:
    """The first problem that pydantic found, as a `BadRequest` that names the field; `prefix` is
    the path of what was validated."""
    problem = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    reason = problem["msg"][0].lower() + problem["msg"][1:]
    path = prefix
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step}" if path else step
    if problem["type"] == "json_invalid":
        raise BadRequest(
            f"The body is not valid JSON ({problem['msg'].removeprefix('Invalid JSON: ')})."
        ) from None
    if not path:
        raise BadRequest("The body must be a JSON object.") from None
    if problem["type"] == "missing":
        raise BadRequest(f"{path} is missing.", param=path) from None
    raise BadRequest(f"{path} is not valid: {reason}.", param=path) from None


def arguments_text(given: object) -> str:
    """The arguments of an earlier call as text: JSON, or the client's own, whatever that is. An
    answer that was cut off has half an object, and its session has to go on."""
    if isinstance(given, str):
        return given
    return "" if given is None else json.dumps(given, ensure_ascii=False)


def unsupported(what: str, param: str) -> Unsupported:
    """That this version does not do `what`, which `param` asks for."""
    return Unsupported(f"This version of mlx-fleet does not support {what}.", param=param)
