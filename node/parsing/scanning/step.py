"""A piece of a grammar: what it reads, and how it says that it is not there."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Step = Generator[None, None, T]
"""What a method reads that may have to wait for text."""


HELD_LENGTH = 64 * 1024
"""Characters of a block that is not complete, and of which is not known whether it is a call; a
longer one is text."""
LONGEST_CALL = 1 << 20
"""The same of a block that has named a tool that may be called."""


class Malformed(Exception):
    """What was read is no block after all."""


class NoCall(Malformed):
    """What was read is whole, and yet no call."""


class TooLong(Malformed):
    """The block is longer than any may be."""


class Finished(Exception):
    """Nothing that follows is to be read."""
