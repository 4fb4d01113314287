"""Applies the swap policy and wakes requests that wait for a model."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from node.engines.model_memory import ModelMemory
from node.engines.processes import EngineProcesses
from node.engines.slot import Slot
from node.engines.slots import Slots
from node.engines.swap_policy import SwapDecision, decide
from node.protocol.messages import ModelState

logger = logging.getLogger(__name__)


class Swapper:
    """Owner of the swap decisions, and of the event that wakes waiting requests."""

    def __init__(
        self,
        slots: Slots,
        engines: EngineProcesses,
        memory: ModelMemory,
        max_swap_wait_s: float,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when a load is abandoned, which its status shows."""
        self._slots = slots
        self._engines = engines
        self._memory = memory
        self._max_swap_wait_s = max_swap_wait_s
        self._on_change = on_change
        self._decision = SwapDecision()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def is_closed(self, name: str) -> bool:
        """True if the model accepts no new requests because another one is to be loaded."""
        return name in self._decision.closed

    def is_blocked(self, name: str) -> bool:
        """True if the model waits until another one has finished its requests."""
        return name in self._decision.closed or name in self._decision.blocked

    def never_fits(self, name: str) -> bool:
        """True if the model cannot fit as long as the pinned models stay."""
        return name in self._decision.hopeless

    @contextmanager
    def waiting(self, slot: Slot, *, ahead: bool) -> Iterator[None]:
        """Counts one request as waiting for the slot's model until the end of the block."""
        key = slot.use.begin_wait(self._engines.now_s(), ahead=ahead)
        try:
            yield
        finally:
            if slot.use.end_wait(key, self._engines.now_s()):
                # Routers with requests for other models use this status.
                if slot.state is ModelState.LOADING:
                    self._on_change()
                self.decide_soon()

    async def changed(self) -> None:
        """Waits until the state of any model has changed."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wakes waiting requests after a change, and schedules the next decision."""
        self._wake()
        self.decide_soon()

    def decide_soon(self) -> None:
        """Schedules `decide` for the next iteration of the loop, once for all changes of this
        one."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.decide)

    def decide(self) -> None:
        """Decides, and carries the decision out."""
        self._is_due = False
        if self._engines.is_closing:
            return
        now_s = self._engines.now_s()
        before, decision = self._decision, self._decide(now_s)
        while decision.load is not None:
            self._load(decision.load)
            decision = self._decide(now_s)
        self._decision = decision
        for name in decision.cancel:
            self._cancel(name)
        for name in decision.unload:
            self._unload(name)
        self._arm(decision.next_s, now_s)
        if decision.hopeless or before.closed - decision.closed:
            self._wake()

    def close(self) -> None:
        """Decides no more, and wakes waiting requests a last time."""
        self._arm(inf, 0.0)
        self._changed.set()

    def _load(self, name: str) -> None:
        slot = self._slots.named(name)
        self._engines.begin_load(slot, self._memory.plan(slot.entry))

    def _unload(self, name: str) -> None:
        slot = self._slots.named(name)
        idle_s = slot.idle_s(self._engines.now_s()) or 0.0
        logger.info("Unloading %s, idle for %.0f s, to make room.", name, idle_s)
        self._engines.stop_soon(slot)

    def _cancel(self, name: str) -> None:
        if (work := self._slots.named(name).work) is not None:
            logger.info("No request waits for %s: its load is cancelled.", name)
            work.cancel()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _decide(self, now_s: float) -> SwapDecision:
        return decide(self._memory.view(now_s), self._max_swap_wait_s, now_s)

    def _arm(self, next_s: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, next_s - now_s), self.decide)
