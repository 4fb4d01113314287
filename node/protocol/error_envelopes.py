"""Errors as JSON in each dialect, for both router and agent."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from node.protocol.errors import anthropic_kind

_encode = msgspec.json.Encoder().encode
_NOTHING: Mapping[str, Any] = {}


class Failure(Protocol):
    """An error of the router or the agent: its HTTP status, OpenAI's `type` and `code` for it, and
    the field at fault."""

    @property
    def status(self) -> int: ...

    @property
    def kind(self) -> str: ...

    @property
    def code(self) -> str: ...

    @property
    def param(self) -> str | None: ...

    @property
    def message(self) -> str: ...


def openai_envelope(
    error: Failure, request_id: str = "", more: Mapping[str, Any] = _NOTHING
) -> bytes:
    """Returns the error in OpenAI's envelope. `more` are further members of the error;
    `request_id`, unless empty, is a sibling of it."""
    fields = {"message": error.message, "type": error.kind, "param": error.param}
    return _encode(_body({"error": {**fields, "code": error.code, **more}}, request_id))


def anthropic_envelope(
    error: Failure,
    request_id: str = "",
    *,
    message: str | None = None,
    more: Mapping[str, Any] = _NOTHING,
) -> bytes:
    """Returns the error in Anthropic's envelope, whose type follows from the status. `message` is
    the text if it has its own in this dialect; otherwise the error's, which names the field at
    fault, since the envelope has no member for it."""
    if message is None:
        is_named = not error.param or error.param in error.message
        message = error.message if is_named else f"{error.param}: {error.message}"
    fields = {"type": anthropic_kind(error.status), "message": message, **more}
    return _encode(_body({"type": "error", "error": fields}, request_id))


def ollama_envelope(error: Failure, more: Mapping[str, Any] = _NOTHING) -> bytes:
    """Returns the error as Ollama's clients read it: a text. They ignore the other members."""
    named = {"param": error.param} if error.param else {}
    fields = {"error": error.message, "type": error.kind, "code": error.code, **named}
    return _encode({**fields, **more})


def response_error(kind: str, fields: Mapping[str, Any], sequence_number: int) -> bytes:
    """Returns the data of the event `error` of `/v1/responses`, with `fields` twice: OpenAI's
    clients read them from the event, and Codex from an `error` within it."""
    numbered = {"sequence_number": sequence_number, "error": {"type": kind, **fields}}
    return _encode({"type": "error", **fields, **numbered})


def _body(body: dict[str, object], request_id: str) -> dict[str, object]:
    return {**body, "request_id": request_id} if request_id else body
