"""What the worker asks of an engine. One thread makes it, steps it and closes it."""

from collections.abc import Callable
from typing import Protocol

from node.types import Accepted, Delta, EngineSpec, GenerateRequest, Loaded, Refused


class Engine(Protocol):
    """A model that is loaded and decodes rows together."""

    info: Loaded

    def submit(self, request: GenerateRequest) -> Accepted | Refused:
        """Takes a row in; it waits inside the engine until there is room. Never blocks."""

    def cancel(self, uid: str) -> Delta | None:
        """Takes a row out, in whatever phase. Its last delta, or None if it is not here."""

    def wait_s(self) -> float | None:
        """Seconds until `step` has work: 0 now, None not before the next `submit`."""

    def step(self) -> list[Delta]:
        """One decode step and at most one prefill chunk of each prompt. Raises nothing but bugs;
        after an exception the worker calls `reset`."""

    def reset(self, reason: str) -> list[Delta]:
        """After an exception in `step`: a fresh generator; the last deltas of all lost rows."""

    def close(self) -> None:
        """Frees all memory, in the thread that made the engine."""


EngineFactory = Callable[[EngineSpec, Callable[[float], None]], Engine]
"""(spec, report of progress from 0 to 1) -> engine. Raises `LoadError` with a sentence."""


class LoadError(Exception):
    """The model cannot be loaded."""
