"""Warm prompts, which are prefilled before any request: files of them, and their messages.

A file has requests as for `/v1/chat/completions` or `/v1/completions`: a JSON list, or one JSON
object a line. The part of a chat that longer chats begin with is prefilled.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from node.dialects.chat.body import read_chat
from node.dialects.completions.completions import read_completion
from node.errors import BadRequest, StartError
from node.request import TextRequest

Body = dict[str, Any]
WarmPlan = Mapping[str, Sequence[TextRequest]]
"""Prompts to prefill at each load of a model, by its name."""

_decode_list = msgspec.json.Decoder(list[Body]).decode
_decode_line = msgspec.json.Decoder(Body).decode


class WarmCommand(msgspec.Struct, frozen=True):
    """Body of `PATH_WARM`."""

    model: str
    requests: tuple[Body, ...]


class WarmProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of one prompt; a line of the response to a `WarmCommand`."""

    index: int
    """Index in the command's requests, from 0."""
    done_tokens: int
    """Cached ones included."""
    total_tokens: int


class WarmResult(msgspec.Struct, frozen=True, tag="result"):
    """Result of one prompt; a line of the response to a `WarmCommand`."""

    index: int
    """Index in the command's requests, from 0."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens that needed no prefill."""
    seconds: float
    error: str | None = None
    """A sentence, for a prompt that could not be warmed."""


_decode_command = msgspec.json.Decoder(WarmCommand).decode
WarmReport = WarmProgress | WarmResult
_report_decoder: msgspec.json.Decoder[WarmReport] = msgspec.json.Decoder(WarmReport)
decode_report = _report_decoder.decode
"""Decodes a line of the response to a `WarmCommand`. Raises `msgspec.MsgspecError`."""


def parse_command(data: bytes | bytearray) -> tuple[str, list[TextRequest]]:
    """The model and the requests of a `WarmCommand`. Raises `BadRequest` or `Unsupported`."""
    try:
        command = _decode_command(data)
    except msgspec.MsgspecError as exc:
        raise BadRequest(f"The body is not a command to warm prompts: {exc}.") from None
    try:
        return command.model, [parse_body(body, command.model) for body in command.requests]
    except BadRequest as exc:
        raise BadRequest(f"A warm prompt is not valid. {exc.message}") from None


def parse_body(body: Body, model: str) -> TextRequest:
    """The request, for that model instead of its own. Raises `BadRequest` or `Unsupported`."""
    if ("messages" in body) == ("prompt" in body):
        raise BadRequest("A warm prompt has either messages or a prompt.", param="messages")
    kept = {name: value for name, value in body.items() if not name.startswith("stream")}
    data = msgspec.json.encode({**kept, "model": model})
    return read_chat(data).request if "messages" in body else read_completion(data).request


def read_bodies(file: Path) -> list[Body]:
    """The request bodies of a file. Raises `StartError`."""
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise StartError(f"The warm prompts of {file} cannot be read: {exc.strerror}.") from None
    if data.lstrip()[:1] == b"[":
        try:
            return _decode_list(data)
        except msgspec.MsgspecError as exc:
            raise StartError(f"{file} is not a JSON list of requests: {exc}.") from None
    bodies = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                bodies.append(_decode_line(line))
            except msgspec.MsgspecError as exc:
                raise StartError(f"{file}, line {number}, is not a JSON object: {exc}.") from None
    return bodies


def read_plan(files: Sequence[tuple[str, Path]]) -> WarmPlan:
    """The requests of (model, file) pairs; a model may have several. Raises `StartError`."""
    plan: dict[str, list[TextRequest]] = {}
    for model, file in files:
        bodies = enumerate(read_bodies(file), 1)
        requests = [check_body(file, number, body, model) for number, body in bodies]
        plan.setdefault(model, []).extend(requests)
    return plan


def check_body(file: Path, number: int, body: Body, model: str) -> TextRequest:
    """The same as `parse_body`, for the request with that number in the file. Raises
    `StartError`."""
    try:
        return parse_body(body, model)
    except BadRequest as exc:
        raise StartError(f"{file}, request {number}: {exc.message}") from None
