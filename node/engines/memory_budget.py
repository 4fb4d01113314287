"""The Mac's memory limit, leased in bytes to the engines.

Only the agent sizes anything from the machine; an engine gets a lease and stays within it. What
the weights, the live KV and the process itself take is granted for good, and so is stored KV that
is pinned; what is then left is shared out as stored KV, and taken back for the next load. Who gets
how much follows from the set of engines and their pinned KV alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from node.errors import DoesNotFit, EngineDied, LoadFailure
from node.ipc.messages import EngineStats, MemoryLease
from serving.units import GIB, gib

OVERHEAD_BYTES = GIB // 2
"""An engine process without weights: interpreter, MLX, compiled graphs, scratch of a step."""
STORED_PERCENT = 90
"""How much of what is left is shared out; the rest is a margin for what no engine counts."""
GIVE_BACK_S = 30.0
"""How long an engine may take to come within a smaller lease."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Grant:
    """What one engine holds for good, and how much stored KV it may have."""

    fixed: MemoryLease
    stored_limit_bytes: int | None
    pinned_bytes: int = 0
    """Stored KV that the engine does not give back."""

    @property
    def kept_bytes(self) -> int:
        return self.fixed.total_bytes + self.pinned_bytes


class Budget:
    """A number of bytes and who holds how many of them."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._grants: dict[str, _Grant] = {}

    @property
    def leased_bytes(self) -> int:
        """Without the stored KV that is given back for a load."""
        return sum(grant.kept_bytes for grant in self._grants.values())

    @property
    def fixed_bytes(self) -> int:
        """Without any stored KV."""
        return sum(grant.fixed.total_bytes for grant in self._grants.values())

    @property
    def stored_bytes(self) -> int:
        """Granted as stored KV, pinned or not."""
        return sum(self.lease(key).stored_kv_bytes for key in self._grants)

    @property
    def excess_bytes(self) -> int:
        """By how much `leased_bytes` is beyond the limit."""
        return max(self.leased_bytes - self.total_bytes, 0)

    def room_bytes(self, key: str) -> int:
        """What `key` may have for good beside the others; at least 0."""
        others = sum(each.kept_bytes for name, each in self._grants.items() if name != key)
        return max(self.total_bytes - others, 0)

    def kept_bytes(self, key: str) -> int:
        """What `key` holds for good; 0 if it holds nothing."""
        grant = self._grants.get(key)
        return 0 if grant is None else grant.kept_bytes

    def refusal(self, key: str, needed_bytes: int) -> DoesNotFit:
        """That there will never be so much for `key`, or that others leave less now."""
        return DoesNotFit(_refusal(key, needed_bytes, self.room_bytes(key), self.total_bytes))

    def admit(self, key: str, fixed: MemoryLease, stored_limit_bytes: int | None = None) -> None:
        """Grants `fixed`, which has no stored KV, in place of what `key` held. Raises `DoesNotFit`
        and changes nothing if the others leave less."""
        room_bytes = self.room_bytes(key)
        if fixed.total_bytes > room_bytes:
            raise self.refusal(key, fixed.total_bytes)
        self._grants[key] = _Grant(fixed, stored_limit_bytes)

    def correct(self, key: str, weight_bytes: int) -> None:
        """What the weights of `key` turned out to take; more leaves less for the stored KV of
        all. Logs it if even that is not enough."""
        grant = self._grants[key]
        old = grant.fixed
        fixed = MemoryLease(weight_bytes, old.live_kv_bytes, 0, old.overhead_bytes)
        self._grants[key] = replace(grant, fixed=fixed)
        if weight_bytes > old.weight_bytes and self.excess_bytes:
            logger.error(
                "The weights of %s take %.1f GiB and not %.1f as planned: the models exceed the "
                "memory limit by %.1f GiB. Unload one, or raise --memory-limit.",
                key,
                *(size / GIB for size in (weight_bytes, old.weight_bytes, self.excess_bytes)),
            )

    def pin(self, key: str, pinned_bytes: int) -> bool:
        """How much of its stored KV `key` keeps for good; whether that is news. Nothing if it
        holds nothing."""
        grant = self._grants.get(key)
        if grant is None or grant.pinned_bytes == pinned_bytes:
            return False
        self._grants[key] = replace(grant, pinned_bytes=pinned_bytes)
        return True

    def release(self, key: str) -> None:
        """Takes back what `key` holds; nothing if it holds nothing."""
        self._grants.pop(key, None)

    def lease(self, key: str) -> MemoryLease:
        """All that `key` may hold now, stored KV included."""
        grant = self._grants[key]
        fixed, stored_bytes = grant.fixed, grant.pinned_bytes + self._shares()[key]
        return MemoryLease(
            fixed.weight_bytes, fixed.live_kv_bytes, stored_bytes, fixed.overhead_bytes
        )

    def _shares(self) -> dict[str, int]:
        """Stored KV beside the pinned, by key: equal shares, and what one may not have goes to
        the others."""
        left_bytes = max(self.total_bytes - self.leased_bytes, 0) * STORED_PERCENT // 100
        shares: dict[str, int] = {}

        def most(key: str) -> int:
            grant = self._grants[key]
            if grant.stored_limit_bytes is None:
                return left_bytes
            return max(grant.stored_limit_bytes - grant.pinned_bytes, 0)

        open_keys = sorted(self._grants, key=most)
        for index, key in enumerate(open_keys):
            share_bytes = min(most(key), left_bytes // (len(open_keys) - index))
            shares[key] = share_bytes
            left_bytes -= share_bytes
        return shares


class Tenant(Protocol):
    """An engine that serves."""

    async def set_lease(self, lease: MemoryLease) -> EngineStats:
        """Its state once it keeps within the lease. Raises `EngineDied`."""


class Leases:
    """Tells the engines what the budget grants them: those that must give first, and what they
    gave to others only when they have given it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._tenants: dict[str, Tenant] = {}
        self._told: dict[str, MemoryLease] = {}
        """The larger of old and new lease while an engine is on its way between them."""
        self._unsure: set[str] = set()
        """Those that have not answered to a lease; they may keep to it or not."""
        self._turn = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None
        self._is_settled = True

    @property
    def tenants(self) -> int:
        """Engines that serve."""
        return len(self._tenants)

    def join(self, key: str, tenant: Tenant, lease: MemoryLease) -> None:
        """An engine has started with `lease`."""
        self._tenants[key] = tenant
        self._told[key] = lease
        self._unsure.discard(key)

    def leave(self, key: str) -> None:
        """The engine is gone, if there was one."""
        self._tenants.pop(key, None)
        self._told.pop(key, None)
        self._unsure.discard(key)

    async def make_room(self) -> None:
        """Returns when no engine holds more than it is granted now. Raises `LoadFailure` if one
        does not give back in time, or if there is less to give than when the load was admitted."""
        async with self._turn:
            if late := await self._take_back():
                raise LoadFailure(
                    f"{' and '.join(late)} did not give back memory within {GIVE_BACK_S:.0f} s."
                )
            if excess_bytes := self._budget.excess_bytes:
                raise LoadFailure(
                    "The models that are loaded came to need more, so that "
                    f"{gib(excess_bytes)} are missing."
                )

    async def settle(self) -> None:
        """Brings every engine to what it is granted now, where there is room for it. Raises
        `LoadFailure` if one does not answer in time."""
        async with self._turn:
            late = await self._take_back()
            # Shares only fall with a grant and only rise with a release, so that what is told now
            # is free now; for a grant that came in between, `make_room` takes it back.
            granted = {key: self._budget.lease(key) for key in self._tenants}
            getting = self._affordable(granted)
            self._told |= {key: granted[key] for key in getting}
            late += await self._tell(getting, granted)
        if late:
            raise LoadFailure(
                f"{' and '.join(late)} did not come to a new memory lease within "
                f"{GIVE_BACK_S:.0f} s."
            )

    def settle_soon(self) -> None:
        """Begins to settle, beside everything else and again until no engine is late."""
        self._is_settled = False
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._keep_settling())

    async def close(self) -> None:
        """Ends what `settle_soon` began."""
        if self._settling is not None:
            self._settling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._settling

    async def _keep_settling(self) -> None:
        told = ""
        while not self._is_settled:
            self._is_settled = True
            try:
                await self.settle()
            except LoadFailure as exc:
                self._is_settled = False
                if exc.message != told:
                    logger.error("%s", exc.message)
                told = exc.message

    def _affordable(self, granted: dict[str, MemoryLease]) -> list[str]:
        """Those to tell of a lease that is no smaller: where it is larger, only as far as there is
        room for it beside what others have not given back."""
        stored_bytes = sum(lease.stored_kv_bytes for lease in self._told.values())
        free_bytes = max(self._budget.total_bytes - self._budget.fixed_bytes - stored_bytes, 0)
        getting = []
        for key, lease in granted.items():
            told = self._told[key]
            more_bytes = lease.stored_kv_bytes - told.stored_kv_bytes
            is_news = lease != told or key in self._unsure
            if is_news and 0 <= more_bytes <= free_bytes:
                free_bytes -= more_bytes
                getting.append(key)
        return getting

    async def _take_back(self) -> list[str]:
        """Tells those that must give; the keys of those that did not in time."""
        granted = {key: self._budget.lease(key) for key in self._tenants}
        giving = [
            key
            for key, lease in granted.items()
            if self._told[key].stored_kv_bytes > lease.stored_kv_bytes
        ]
        return await self._tell(giving, granted)

    async def _tell(self, keys: Collection[str], granted: dict[str, MemoryLease]) -> list[str]:
        """Sends the leases and waits; the keys of those that did not answer in time."""
        answers = await asyncio.gather(*(self._tell_one(key, granted[key]) for key in keys))
        return [key for key, answered in zip(keys, answers, strict=True) if not answered]

    async def _tell_one(self, key: str, lease: MemoryLease) -> bool:
        tenant = self._tenants.get(key)
        if tenant is None:
            return True
        self._unsure.add(key)
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await tenant.set_lease(lease)
        except TimeoutError:
            return False
        except EngineDied:
            pass  # and so holds nothing
        if self._tenants.get(key) is tenant:
            self._told[key] = lease
            self._unsure.discard(key)
        return True


def _refusal(key: str, needed_bytes: int, free_bytes: int, total_bytes: int) -> str:
    if needed_bytes > total_bytes:
        advice = "Raise --memory-limit or choose a smaller model."
    else:
        advice = "Unload another model first, or raise --memory-limit."
    return (
        f"{key} needs {gib(needed_bytes)}, but {gib(free_bytes)} of the memory limit of "
        f"{gib(total_bytes)} are free: {(needed_bytes - free_bytes) / GIB:.1f} "
        f"GiB too few. {advice}"
    )
