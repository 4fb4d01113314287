"""A piece of a grammar: what it reads, and how it says that it is not there."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Step = Generator[None, None, T]
"""What a method reads that may have to wait for text."""


HELD_LENGTH = 64 * 1024
"""Characters of a block that is not complete; a longer one is text."""


class Malformed(Exception):
    """What was read is no block after all."""


class TooLong(Malformed):
    """The block is longer than any may be."""


class Finished(Exception):
    """Nothing that follows is to be read."""
