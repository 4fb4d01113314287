"""One line of the report on a machine: what was expected of it, and what was found."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

MIB = 1 << 20


class Line(msgspec.Struct, frozen=True):
    """A finding. Neither text holds names of hosts, users or models, addresses or prompts."""

    section: str
    name: str
    expected: str
    found: str
    ok: bool | None
    """None: it was not run, and `found` says why."""
    took_s: float = 0.0


class Sizes(msgspec.Struct, frozen=True):
    """How much the probes compute: about five minutes in all."""

    prompt_tokens: int
    answer_tokens: int
    long_tokens: int
    steps: int
    depths: tuple[int, ...]
    chunks: tuple[int, ...]


ON_GPU = Sizes(600, 48, 4_000, 2_000, (0, 8_000, 16_000), (256, 512, 1024, 2048))
ON_CPU = Sizes(120, 12, 600, 200, (0, 500), (256, 512))
"""A hundredth of a GPU's arithmetic."""


def told(section: str, name: str, found: str, took_s: float = 0.0) -> Line:
    """A line from which nothing is expected but to be known."""
    return Line(section, name, "told", found, ok=True, took_s=took_s)


def not_here(section: str, name: str, expected: str, why: str) -> Line:
    """A line that this machine cannot tell."""
    return Line(section, name, expected, f"not run: {why}", None)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds since the beginning, as often as they are asked for."""
    began_s = time.monotonic()
    yield lambda: time.monotonic() - began_s
