"""Reads from a body how many tokens its response may have."""

from collections.abc import Iterable
from math import ceil
from typing import overload

import msgspec

from node.protocol.chain.prefix import Fields

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "num_predict")
_CHOICES = ("n", "best_of")
_MOST = 1_000_000_000

_NULL = msgspec.Raw(b"null")
_decode_number = msgspec.json.Decoder(int | float | None).decode
_decode_object = msgspec.json.Decoder(Fields | None).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


@overload
def output_limit(fields: Fields) -> int | None: ...


@overload
def output_limit(fields: Fields, otherwise: int) -> int: ...


def output_limit(fields: Fields, otherwise: int | None = None) -> int | None:
    """The most tokens of all choices together; `otherwise` stands in for the limit of one choice if
    the body sets none."""
    limit = _number(_with_options(fields), _LIMITS) or otherwise
    if limit is None:
        return None
    return limit * max(_number(fields, (name,)) or 1 for name in _CHOICES) * _prompts(fields)


def _number(fields: Fields, names: Iterable[str]) -> int | None:
    """The value of the first field that is a positive number, None if none is; the server will
    refuse one that is no number."""
    for name in names:
        try:
            number: int | float | None = _decode_number(fields.get(name, _NULL))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if number is not None and number > 0:
            return ceil(min(number, _MOST))
    return None


def _with_options(fields: Fields) -> Fields:
    """Adds the members of Ollama's object `options`."""
    if "options" not in fields:
        return fields
    try:
        return {**fields, **(_decode_object(fields["options"]) or {})}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return fields


def _prompts(fields: Fields) -> int:
    """Number of texts to complete."""
    raw = fields.get("prompt", _NULL)
    if not bytes(raw).startswith(b"["):
        return 1
    try:
        parts = _decode_parts(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1
    return max(1, sum(bytes(part)[:1] in (b'"', b"[") for part in parts))
