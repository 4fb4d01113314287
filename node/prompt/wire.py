"""Messages between the agent and a render process.

The agent's messages are pickled, since they contain whatever a client sent. A render process runs
code of the model's author, so its responses are plain data of the types below and nothing else.
"""

import pickle
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node.parsing.selection import Formats
from node.protocol.chain.prefix import Chain
from node.protocol.overflow import Overflow
from node.request import TextRequest

LENGTH = struct.Struct("<I")
"""Length in bytes of a message, sent before it."""
MAX_RESPONSE_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class OpenTokenizer:
    """Loads the tokenizer of a model folder. The response is `Opened` or `Failed`."""

    folder: Path


@dataclass(frozen=True, slots=True)
class OpenTemplate:
    """Loads that folder's chat template and tests it. The response is `Opened` or `Failed`."""

    formats: Formats | None
    """The argument of `PromptRenderer`."""


@dataclass(frozen=True, slots=True)
class Render:
    """Makes a prompt. The response is `Rendered`, `RenderRefused` or `Failed`."""

    request: TextRequest
    context_tokens: int | None
    shared: bool


@dataclass(frozen=True, slots=True)
class CountPositions:
    """Requests the token counts of a chain's positions in the last prompt that was made. The
    response is `PositionCounts` or `Failed`."""

    chain: Chain


Command = OpenTokenizer | OpenTemplate | Render | CountPositions


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The tokenizer or the template is loaded."""

    formats: Formats = Formats()
    """Formats of responses to chats with tools."""


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """A prompt; fields as in `Prompt`, token ids and counts with four bytes each."""

    tokens: bytes
    boundaries: bytes
    reusable_tokens: int | None
    dropped_output: bytes
    formats: Formats
    tail: str


class RenderRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The request is not valid."""

    message: str
    param: str | None
    overflow: Overflow | None = None
    """Set if the prompt is too long."""


class PositionCounts(msgspec.Struct, frozen=True, tag="bound"):
    """Tokens up to each position, with four bytes each."""

    counts: bytes


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The command failed for a reason that is no fault of the request."""

    reason: str


RenderResponse = Opened | Rendered | RenderRefused | PositionCounts | Failed

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[RenderResponse] = msgspec.msgpack.Decoder(RenderResponse)
decode_response = _decoder.decode
"""Decodes a response. Raises `msgspec.MsgspecError`."""


def command_frame(command: Command) -> bytes:
    return _frame(pickle.dumps(command, pickle.HIGHEST_PROTOCOL))


def decode_command(body: bytes) -> Command:
    """Decodes a command. In a render process only: what is unpickled is trusted."""
    command: Command = pickle.loads(body)
    return command


def response_frame(response: RenderResponse) -> bytes:
    return _frame(_encode(response))


def pack(numbers: "tuple[int, ...] | array[int]") -> bytes:
    return array("I", numbers).tobytes()


def unpack(data: bytes) -> "array[int]":
    """Raises `ValueError` if the data is not a multiple of four bytes."""
    return array("I", data)


def _frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body
