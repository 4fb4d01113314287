"""One line of the report on a machine: the expected result and the actual one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

MIB = 1 << 20


class Line(msgspec.Struct, frozen=True):
    """A finding. Neither text contains names of hosts, users or models, addresses or prompts."""

    section: str
    name: str
    expected: str
    found: str
    ok: bool | None
    """None if it was not run; `found` has the reason."""
    took_s: float = 0.0


class ProbeSizes(msgspec.Struct, frozen=True):
    """Amount of work of the probes: about five minutes in all."""

    prompt_tokens: int
    output_tokens: int
    long_tokens: int
    steps: int
    depths: tuple[int, ...]
    chunks: tuple[int, ...]


ON_GPU = ProbeSizes(600, 48, 4_000, 2_000, (0, 8_000, 16_000), (256, 512, 1024, 2048))
ON_CPU = ProbeSizes(120, 12, 600, 200, (0, 500), (256, 512))
"""A hundredth of a GPU's arithmetic."""


def measured(section: str, name: str, found: str, took_s: float = 0.0) -> Line:
    """Returns a line for information, without an expected result."""
    return Line(section, name, "reported", found, ok=True, took_s=took_s)


def not_measured(section: str, name: str, expected: str, why: str) -> Line:
    """Returns a line that this machine cannot measure."""
    return Line(section, name, expected, f"not run: {why}", None)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Provides a function that returns the seconds since the block began."""
    began_s = time.monotonic()
    yield lambda: time.monotonic() - began_s
