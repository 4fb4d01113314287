"""Length-prefixed msgpack frames on the socketpair between agent and engine process."""

import struct
from collections.abc import Iterator

import msgspec

from node.ipc.messages import Command, Report

_LENGTH = struct.Struct("<I")

_encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode


def encode_frame(message: Command | Report) -> bytes:
    """Encodes one message: 4 bytes of little-endian length, then msgpack."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Buffers received bytes and yields whole message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the bodies that `data` completes, and buffers the rest for the next call."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            yield bytes(buffer[start + _LENGTH.size : end])
            start = end
        del buffer[:start]
