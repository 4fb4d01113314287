"""Traces of requests, as lines of JSON: Mooncake's fields, and sessions where a trace has them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from router.simulator.spoken import Said, Spoken

MAX_TOKENS = 1 << 28
"""Of a prompt, and of an answer."""


class TraceError(ValueError):
    """A trace cannot be read. The message names line and field."""


class Request(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    """Milliseconds since any moment, the same for all lines."""
    input_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    """Tokens of the prompt. Public traces have some of 0, which are read as of 1: every prompt has
    a token to begin with."""
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    """Tokens of the answer."""
    hash_ids: list[int]
    """Names of the prompt's blocks, in order; the last one may be shorter than a block."""
    session: int | str | None = None
    """Requests of a session follow one another: each waits for the answer before it."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their time, those of a session together."""

    requests: tuple[Request, ...]
    block_tokens: int
    has_sessions: bool


class _Form(msgspec.Struct):
    """Which kind of trace a line is of."""

    timestamp: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    append: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_spoken(self) -> bool:
        told = self.append is not msgspec.UNSET or self.messages is not msgspec.UNSET
        return told and self.timestamp is msgspec.UNSET


_decode_form = msgspec.json.Decoder(_Form).decode
_Line = TypeVar("_Line", str, bytes)
_decode = msgspec.json.Decoder(Request).decode


def read_trace(lines: Iterable[_Line], block_tokens: int | None = None) -> Trace:
    """Raises `TraceError`. Without `block_tokens` the size of a block is inferred."""
    found: list[tuple[int, Request]] = []
    spoken = Spoken()
    for number, line in enumerate(lines, 1):
        if line.strip():
            found += [(number, request) for request in _read_line(number, line, spoken)]
    if not found:
        raise TraceError("The trace has no requests.")
    has_sessions = found[0][1].session is not None
    for number, request in found:
        if (request.session is not None) != has_sessions:
            raise TraceError(f"Line {number}: either all lines have a `session` or none has.")
    size = block_tokens or _infer_block_tokens([request for _, request in found])
    for number, request in found:
        _check_blocks(number, request, size)
    return Trace(_in_order([request for _, request in found]), size, has_sessions)


def _read_line(number: int, line: str | bytes, spoken: Spoken) -> list[Request]:
    try:
        if _decode_form(line).is_spoken:
            return [_reckoned(said) for said in spoken.read(line)]
        request = _decode(line)
    except msgspec.ValidationError as error:
        raise TraceError(f"Line {number}: {_in_words(str(error))}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"Line {number} is not JSON: {error}.") from error
    except ValueError as error:
        raise TraceError(f"Line {number}: {error}.") from error
    if not request.input_length:
        request = replace(request, input_length=1, hash_ids=request.hash_ids[:1])
    return [request]


def _reckoned(said: Said) -> Request:
    return Request(
        said.at_ms, said.input_tokens, said.output_tokens, said.blocks(), session=said.session
    )


def _in_words(problem: str) -> str:
    what, at, where = problem.partition(" - at `$")
    return f"`{where.strip('.`')}`: {what}" if at and where != "`" else what


def _in_order(requests: list[Request]) -> tuple[Request, ...]:
    firsts: dict[int | str | None, float] = {}
    for request in requests:
        first_ms = firsts.get(request.session, request.timestamp)
        firsts[request.session] = min(first_ms, request.timestamp)
    sessions = {session: number for number, session in enumerate(firsts)}
    return tuple(
        sorted(
            requests,
            key=lambda each: (firsts[each.session], sessions[each.session], each.timestamp),
        )
    )


def _infer_block_tokens(requests: list[Request]) -> int:
    """The one size with which every prompt has as many blocks as its line says; the most usual
    power of two where several would do."""
    least, most = 1, 1 << 20
    for request in requests:
        blocks = len(request.hash_ids)
        if blocks == 0:
            continue
        least = max(least, -(-request.input_length // blocks))
        if blocks > 1:
            most = min(most, (request.input_length - 1) // (blocks - 1))
    if least > most:
        counts = Counter(
            -(-request.input_length // len(request.hash_ids))
            for request in requests
            if request.hash_ids
        )
        guess = max(counts) if counts else 1
        raise TraceError(
            "No size of a block fits `input_length` and `hash_ids` of all lines "
            f"(some need {guess} tokens or more); name it with --block-tokens."
        )
    power = 1 << (least - 1).bit_length()
    return power if power <= most else least


def _check_blocks(number: int, request: Request, block_tokens: int) -> None:
    blocks = -(-request.input_length // block_tokens)
    if request.hash_ids and len(request.hash_ids) != blocks:
        raise TraceError(
            f"Line {number}: `hash_ids` has {len(request.hash_ids)} blocks, but "
            f"`input_length` {request.input_length} has {blocks} of {block_tokens} tokens."
        )
