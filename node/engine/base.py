"""What the worker asks of an engine. One thread makes it, steps it and closes it."""

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
    """A model that is loaded and decodes rows together."""

    info: Loaded

    def set_on_long_step(self, on_long_step: Callable[[float], None]) -> None:
        """`on_long_step` is called before each step that is expected to take seconds, with how
        many."""

    def submit(self, request: GenerateRequest) -> Accepted | Refused | None:
        """Takes a row in; it waits inside the engine until there is room. Never blocks: None where
        the answer comes later, with `take_answers`."""

    def cancel(self, uid: str) -> list[Delta]:
        """Takes a request out, in whatever phase. The last deltas of its choices; none if it is not
        here."""

    def wait_s(self) -> float | None:
        """Seconds until `step` has work: 0 now, None not before the next `submit`."""

    def step(self) -> list[Delta]:
        """One decode step of all rows, or one prefill chunk. Raises nothing but bugs; after an
        exception the worker calls `reset`."""

    def reset(self, reason: str) -> list[Delta]:
        """After an exception in `step`: no rows inside; the last deltas of all lost rows."""

    def set_lease(self, lease: MemoryLease) -> None:
        """The engine is within the lease when this returns, as far as its live rows allow."""

    def set_pressure(self, level: Pressure) -> None:
        """How short the machine is of memory from now on."""

    def clear_cache(self) -> None:
        """Forgets all stored KV, in memory and on disk."""

    def stats(self) -> EngineStats:
        """The state at this moment."""

    def take_answers(self) -> list[Accepted | Refused]:
        """Answers to earlier `submit`s, where they are known now. `wait_s` reckons with them, and
        `step` works them out."""

    def take_progress(self) -> tuple[Progress, ...]:
        """How far long prefills are, where that has changed since the last call."""

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        """What has happened to the prefix cache since the last call, in order."""

    def close(self) -> tuple[CacheEvent, ...]:
        """Frees all memory, in the thread that made the engine. What happened to the prefix cache
        since the last `take_cache_events`."""


EngineFactory = Callable[[EngineSpec, Callable[[float], None]], Engine]
"""(spec, report of progress from 0 to 1) -> engine. Raises `LoadError` with a sentence."""


class LoadError(Exception):
    """The model cannot be loaded."""
