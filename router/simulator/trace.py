"""Traces of requests as lines of JSON: Mooncake's fields, and optional sessions."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from router.simulator.text_traces import TextTrace, TextTraceRequest

MAX_TOKENS = 1 << 28
"""Limit of a prompt, and of a response."""


class TraceError(ValueError):
    """A trace cannot be read. The message names line and field."""


class Request(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    """Milliseconds since a moment that is the same for all lines."""
    input_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    """Tokens of the prompt. Public traces have some zeros, which are read as 1, since every prompt
    has a token."""
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    """Tokens of the response."""
    hash_ids: list[int]
    """Names of the prompt's blocks, in order; the last block may be shorter than the others."""
    session: int | str | None = None
    """Requests of a session follow each other: each waits for the response to the previous one."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of time, those of a session together."""

    requests: tuple[Request, ...]
    block_tokens: int
    has_sessions: bool


class _Form(msgspec.Struct):
    """The fields that show the kind of trace a line belongs to."""

    timestamp: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    append: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_text(self) -> bool:
        has_text = self.append is not msgspec.UNSET or self.messages is not msgspec.UNSET
        return has_text and self.timestamp is msgspec.UNSET


_decode_form = msgspec.json.Decoder(_Form).decode
_Line = TypeVar("_Line", str, bytes)
_decode = msgspec.json.Decoder(Request).decode


def read_trace(lines: Iterable[_Line], block_tokens: int | None = None) -> Trace:
    """Reads a trace. Infers the block size unless `block_tokens` gives it. Raises `TraceError`."""
    found: list[tuple[int, Request]] = []
    text_trace = TextTrace()
    for number, line in enumerate(lines, 1):
        if line.strip():
            found += [(number, request) for request in _read_line(number, line, text_trace)]
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


def _read_line(number: int, line: str | bytes, text_trace: TextTrace) -> list[Request]:
    try:
        if _decode_form(line).is_text:
            return [_estimated(each) for each in text_trace.read(line)]
        request = _decode(line)
    except msgspec.ValidationError as error:
        raise TraceError(f"Line {number}: {_readable(str(error))}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"Line {number} is not JSON: {error}.") from error
    except ValueError as error:
        raise TraceError(f"Line {number}: {error}.") from error
    if not request.input_length:
        request = replace(request, input_length=1, hash_ids=request.hash_ids[:1])
    return [request]


def _estimated(request: TextTraceRequest) -> Request:
    return Request(
        request.at_ms,
        request.input_tokens,
        request.output_tokens,
        request.blocks(),
        session=request.session,
    )


def _readable(problem: str) -> str:
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
    """The block size that fits the number of blocks on every line; of several, a power of two if
    there is one, else the smallest."""
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
