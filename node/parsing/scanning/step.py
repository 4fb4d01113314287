"""The generator type of everything that reads an output, and the exceptions by which it ends."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Step = Generator[None, None, T]
"""A reader that is suspended while it waits for more text; T is its result."""


LONGEST_BLOCK = 64 * 1024
"""Most characters of an incomplete block that has not named a tool; a longer one is text."""
LONGEST_CALL = 1 << 20
"""Most characters of an incomplete block that has named a tool which may be called."""


class Malformed(Exception):
    """The text read is not a block after all."""


class NotACall(Malformed):
    """The text read is complete but is not a call."""


class BlockTooLong(Malformed):
    """The block is longer than any block may be."""


class OutputEnded(Exception):
    """The rest of the output is not to be read."""
