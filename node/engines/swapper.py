"""Applies the swap policy and wakes requests that wait for a model."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Protocol

from node.engines.slot import Slot
from node.engines.swap_policy import Memory, Rules, Step, next_step


class Models(Protocol):
    """The owner of the engines."""

    def memory(self) -> Memory:
        """Returns which models have memory now and which need it."""

    def begin_load(self, name: str) -> None: ...

    def begin_stop(self, name: str) -> None:
        """Stops a model that has no lease."""

    def cancel_load(self, name: str) -> None: ...

    def on_abandoned(self, slot: Slot) -> None:
        """Called when no request waits for the slot's load any more."""

    @property
    def now_s(self) -> Callable[[], float]: ...


class Residency:
    """Owner of the swap decisions, and of the event that wakes waiting requests."""

    def __init__(self, models: Models, rules: Rules) -> None:
        self.rules = rules
        self._models = models
        self._step = Step()
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def is_closed(self, name: str) -> bool:
        """True if the model accepts no new requests because another one is to be loaded."""
        return name in self._step.closed

    def gives_way(self, name: str) -> bool:
        """True if the model waits until another one has finished its requests."""
        return name in self._step.closed or name in self._step.held

    def is_hopeless(self, name: str) -> bool:
        """True if there will never be enough memory for the model."""
        return name in self._step.hopeless

    @contextmanager
    def waiting(self, slot: Slot) -> Iterator[None]:
        """Counts one request as waiting for the slot's model until the end of the block."""
        one = object()
        slot.waiting[one] = self._models.now_s()
        slot.abandoned_s = None
        try:
            yield
        finally:
            del slot.waiting[one]
            if not slot.waiting:
                slot.abandoned_s = self._models.now_s()
                self._models.on_abandoned(slot)
                self.look_soon()

    async def news(self) -> None:
        """Waits until the state of any model has changed."""
        await self._news.wait()

    def tell(self) -> None:
        """Wakes waiting requests after a change, and schedules the next decision."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        self.look_soon()

    def look_soon(self) -> None:
        """Schedules `look` for the next iteration of the loop, once for all changes of this one."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Decides, and carries the decision out."""
        self._is_due = False
        now_s = self._models.now_s()
        before, step = self._step, next_step(self._models.memory(), self.rules, now_s)
        while step.load is not None:
            self._models.begin_load(step.load)
            step = next_step(self._models.memory(), self.rules, now_s)
        self._step = step
        for name in step.cancel:
            self._models.cancel_load(name)
        for name in step.unload:
            self._models.begin_stop(name)
        self._arm(step.look_s, now_s)
        if step.hopeless or before.closed - step.closed:
            news, self._news = self._news, asyncio.Event()
            news.set()

    def close(self) -> None:
        """Decides no more, and wakes waiting requests a last time."""
        self._arm(inf, 0.0)
        self._news.set()

    def _arm(self, look_s: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if look_s < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, look_s - now_s), self.look)
