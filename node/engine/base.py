"""The interface of an engine to its worker. One thread makes, steps and closes an engine."""

from collections.abc import Callable
from typing import Protocol

from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    Accepted,
    CacheEvent,
    Delta,
    EngineSpec,
    EngineStats,
    Loaded,
    MemoryLease,
    Pressure,
    Progress,
    Refused,
)


class Engine(Protocol):
    """A loaded model that decodes rows together."""

    info: Loaded

    def submit(self, request: GenerateRequest) -> Accepted | Refused | None:
        """Accepts or refuses a request. An accepted one waits inside the engine until there is
        room. Never blocks: None means that `take_responses` returns the result later."""

    def cancel(self, uid: str) -> list[Delta]:
        """Removes a request in any phase and returns the last deltas of its choices; an empty list
        if the engine does not have it."""

    def wait_s(self) -> float | None:
        """Returns the seconds until `step` has work: 0 if it has some already, None if it has none
        before the next `submit`."""

    def step(self) -> list[Delta]:
        """Runs one decode step of all rows, or one prefill chunk. An exception is a bug or an error
        of the device; the worker calls `reset` after it."""

    def reset(self, reason: str) -> list[Delta]:
        """Drops all rows after an exception in `step` and returns the last deltas of the lost
        ones."""

    def set_lease(self, lease: MemoryLease) -> None:
        """Applies the lease. The engine is within it when this returns, as far as its live rows
        allow."""

    def set_pressure(self, level: Pressure) -> None:
        """Sets the machine's level of memory pressure."""

    def clear_cache(self) -> None:
        """Deletes all stored KV, in memory and on disk."""

    def stats(self) -> EngineStats:
        """Returns the current state."""

    def take_responses(self) -> list[Accepted | Refused]:
        """Returns the results of earlier `submit`s that have become known. `step` computes them,
        and `wait_s` takes them into account."""

    def take_progress(self) -> tuple[Progress, ...]:
        """Returns the progress of long prefills, where it has changed since the last call."""

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        """Returns the changes of the prefix cache since the last call, in order."""

    def close(self) -> tuple[CacheEvent, ...]:
        """Frees all memory, in the thread that made the engine. Returns the changes of the prefix
        cache since the last `take_cache_events`."""


EngineFactory = Callable[[EngineSpec, Callable[[float], None], Callable[[float], None]], Engine]
"""(spec, callback for progress from 0 to 1, callback before each step that is expected to take
seconds, with the expected seconds) -> engine. Raises `LoadError` with a sentence."""


def ignore_long_step(expected_s: float) -> None:
    """The callback of an engine whose long steps are not reported."""


class LoadError(Exception):
    """The model cannot be loaded."""
