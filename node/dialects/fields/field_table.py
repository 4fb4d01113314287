"""Parses request bodies by a table of their fields: those that are applied, refused or ignored.

Each dialect has one `FieldTable`; the documentation is generated from it too.
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
    """Hashable, since the types annotated with it are members of unions."""


FIRST_FAULT = _FirstFault()
"""Stops the validation of a list at its first error: only one is reported, and each takes a
kilobyte of memory."""


class Lenient(BaseModel):
    """A JSON object that keeps unknown fields without interpreting them."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


Body = TypeVar("Body", bound=Lenient)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that this version does not support, and the values of it that are accepted all the
    same."""

    is_neutral: Callable[[object], bool]
    """True for values that have no effect; those are accepted."""
    accepted: str
    """The accepted values in words, for the documentation and the error message: `null or 1`."""
    why: str = ""
    """A sentence for the error message that says more than "not supported"; may be empty."""


def absent(value: object) -> bool:
    """Accepts null and a missing field only."""
    return value is None


def falsy(value: object) -> bool:
    """Accepts null, false, 0, and empty values."""
    return not value


def off(value: object) -> bool:
    """Accepts null and false only; not 0, which has a meaning."""
    return value is None or value is False


def on(value: object) -> bool:
    """Accepts null and true only."""
    return value is None or value is True


def only(*values: object) -> Callable[[object], bool]:
    """Accepts null and these values; true and false are not 1 and 0."""
    return lambda value: (
        value is None or any(type(value) is type(each) and value == each for each in values)
    )


@dataclass(frozen=True, slots=True)
class FieldTable(Generic[Body]):
    """All top-level fields that a path knows; unknown ones are ignored."""

    body: type[Body]
    """The model of the body; its fields are applied."""
    notes: Mapping[str, str]
    """For the documentation: how each field of `body` is applied."""
    refused: Mapping[str, Refusal]
    ignored: Mapping[str, str]
    """For the documentation: reasons why there is nothing to apply, by field. These fields only
    label a request, or request what happens anyway."""

    def read(self, data: bytes) -> Body:
        """Returns the validated body. Raises `BadRequest`, `BodyTooLarge`, or `Unsupported` for a
        refused field."""
        if has_too_many_values(data):
            raise BodyTooLarge(TOO_MANY)
        try:
            parsed = self.body.model_validate_json(data)
        except ValidationError as exc:
            refuse_invalid(exc)
        self.refuse(parsed)
        return parsed

    def refuse(self, parsed: Body, owner: str = "") -> None:
        """Raises `Unsupported` for a refused field of a validated object, which is the member
        `owner` of the body unless that is empty."""
        extra = parsed.model_extra or {}
        for name, refusal in self.refused.items():
            if not refusal.is_neutral(extra.get(name)):
                path = f"{owner}.{name}" if owner else name
                raise Unsupported(refusal.why or _not_accepted(path, refusal.accepted), param=path)


def _not_accepted(name: str, accepted: str) -> str:
    if accepted == "null":
        return f"This version of mlx-fleet does not support {name}; leave it out."
    return f"This version of mlx-fleet does not support this value of {name}; it may be {accepted}."


def refuse_invalid(exc: ValidationError, prefix: str = "") -> NoReturn:
    """Raises pydantic's first error as a `BadRequest` that names the field; `prefix` is the path of
    the validated value."""
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
    """Returns the arguments of an earlier call as text: JSON, or the client's string, unchecked. A
    response that was cut off has an incomplete object, and its session must be able to continue."""
    if isinstance(given, str):
        return given
    return "" if given is None else json.dumps(given, ensure_ascii=False)


def unsupported(what: str, param: str) -> Unsupported:
    """Returns the error that this version does not support `what`, which the field `param`
    requests."""
    return Unsupported(f"This version of mlx-fleet does not support {what}.", param=param)
