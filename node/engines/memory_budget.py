"""The memory budget of the machine, leased in bytes to the engines.

Only the agent derives sizes from the machine; an engine gets a lease and stays within it. Weights,
live KV and the process's overhead are granted until the engine ends, and so is pinned stored KV;
the rest is shared out as stored KV, and reclaimed for the next load. The shares depend only on the
set of engines and their pinned KV.
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
"""Size of an engine process without weights: interpreter, MLX, compiled graphs, scratch of a
step."""
STORED_PERCENT = 90
"""Percentage of the unused memory that is shared out; the rest is a margin for memory that no
engine counts."""
GIVE_BACK_S = 30.0
"""Seconds that an engine may take to shrink to a smaller lease."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Grant:
    """The fixed part of one engine's lease, and the limit of its stored KV."""

    fixed: MemoryLease
    stored_limit_bytes: int | None
    pinned_bytes: int = 0
    """Stored KV that the engine never evicts."""

    @property
    def kept_bytes(self) -> int:
        return self.fixed.total_bytes + self.pinned_bytes


class Budget:
    """A number of bytes, and the grants of each engine."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._grants: dict[str, _Grant] = {}

    @property
    def leased_bytes(self) -> int:
        """Granted bytes, without the stored KV that can be reclaimed for a load."""
        return sum(grant.kept_bytes for grant in self._grants.values())

    @property
    def fixed_bytes(self) -> int:
        """Granted bytes without any stored KV."""
        return sum(grant.fixed.total_bytes for grant in self._grants.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes granted as stored KV, pinned or not."""
        return sum(self.lease(key).stored_kv_bytes for key in self._grants)

    @property
    def excess_bytes(self) -> int:
        """Bytes by which `leased_bytes` exceeds the limit."""
        return max(self.leased_bytes - self.total_bytes, 0)

    def room_bytes(self, key: str) -> int:
        """Returns the bytes that `key` may have as fixed part beside the other grants; at least
        0."""
        others = sum(each.kept_bytes for name, each in self._grants.items() if name != key)
        return max(self.total_bytes - others, 0)

    def kept_bytes(self, key: str) -> int:
        """Returns the bytes that `key` keeps until it ends; 0 if it has no grant."""
        grant = self._grants.get(key)
        return 0 if grant is None else grant.kept_bytes

    def refusal(self, key: str, needed_bytes: int) -> DoesNotFit:
        """Returns the error that `needed_bytes` exceed the limit, or what other models leave of
        it."""
        return DoesNotFit(_refusal(key, needed_bytes, self.room_bytes(key), self.total_bytes))

    def admit(self, key: str, fixed: MemoryLease, stored_limit_bytes: int | None = None) -> None:
        """Grants `fixed`, which has no stored KV, in place of the earlier grant of `key`. Raises
        `DoesNotFit` and changes nothing if the others leave less."""
        room_bytes = self.room_bytes(key)
        if fixed.total_bytes > room_bytes:
            raise self.refusal(key, fixed.total_bytes)
        self._grants[key] = _Grant(fixed, stored_limit_bytes)

    def correct(self, key: str, weight_bytes: int) -> None:
        """Replaces the planned weights of `key` by their measured size; a larger one reduces the
        stored KV of all engines. Logs an error if even that does not suffice."""
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
        """Sets the stored KV that `key` never evicts; returns True if it changed. Does nothing if
        `key` has no grant."""
        grant = self._grants.get(key)
        if grant is None or grant.pinned_bytes == pinned_bytes:
            return False
        self._grants[key] = replace(grant, pinned_bytes=pinned_bytes)
        return True

    def release(self, key: str) -> None:
        """Removes the grant of `key`, if there is one."""
        self._grants.pop(key, None)

    def lease(self, key: str) -> MemoryLease:
        """Returns the whole current lease of `key`, stored KV included."""
        grant = self._grants[key]
        fixed, stored_bytes = grant.fixed, grant.pinned_bytes + self._shares()[key]
        return MemoryLease(
            fixed.weight_bytes, fixed.live_kv_bytes, stored_bytes, fixed.overhead_bytes
        )

    def _shares(self) -> dict[str, int]:
        """Returns the unpinned stored KV by key: equal shares, and what exceeds the limit of one
        engine goes to the others."""
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
        """Returns the engine's state once it keeps within the lease. Raises `EngineDied`."""


class Leases:
    """Sends the engines their leases: first to those that must shrink, and larger ones to the
    others only once the memory is free."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._tenants: dict[str, Tenant] = {}
        self._sent: dict[str, MemoryLease] = {}
        """Last lease sent to each engine; the larger of old and new one while the engine has not
        confirmed."""
        self._unsure: set[str] = set()
        """Engines that have not confirmed a lease, and may keep to it or not."""
        self._lock = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None
        self._is_settled = True

    @property
    def tenants(self) -> int:
        """Number of engines that serve."""
        return len(self._tenants)

    def add(self, key: str, tenant: Tenant, lease: MemoryLease) -> None:
        """Adds an engine that has started with `lease`."""
        self._tenants[key] = tenant
        self._sent[key] = lease
        self._unsure.discard(key)

    def remove(self, key: str) -> None:
        """Removes the engine, if there was one."""
        self._tenants.pop(key, None)
        self._sent.pop(key, None)
        self._unsure.discard(key)

    async def make_room(self) -> None:
        """Returns when no engine uses more than its grant. Raises `LoadFailure` if one does not
        shrink in time, or if less can be reclaimed than when the load was admitted."""
        async with self._lock:
            if late := await self._reclaim():
                raise LoadFailure(
                    f"{' and '.join(late)} did not give back memory within {GIVE_BACK_S:.0f} s."
                )
            if excess_bytes := self._budget.excess_bytes:
                raise LoadFailure(
                    "The models that are loaded came to need more, so that "
                    f"{gib(excess_bytes)} are missing."
                )

    async def settle(self) -> None:
        """Brings every engine to its grant where there is room for it. Raises `LoadFailure` if one
        does not confirm in time."""
        async with self._lock:
            late = await self._reclaim()
            # Shares only fall with a grant and only rise with a release, so the memory that is
            # leased here is free; if a grant intervenes, its `make_room` reclaims it.
            granted = {key: self._budget.lease(key) for key in self._tenants}
            getting = self._affordable(granted)
            self._sent |= {key: granted[key] for key in getting}
            late += await self._send(getting, granted)
        if late:
            raise LoadFailure(
                f"{' and '.join(late)} did not adopt a new memory lease within {GIVE_BACK_S:.0f} s."
            )

    def settle_soon(self) -> None:
        """Settles in the background, and repeats until no engine is late."""
        self._is_settled = False
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._keep_settling())

    async def close(self) -> None:
        """Ends the background settling."""
        if self._settling is not None:
            self._settling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._settling

    async def _keep_settling(self) -> None:
        last_message = ""
        while not self._is_settled:
            self._is_settled = True
            try:
                await self.settle()
            except LoadFailure as exc:
                self._is_settled = False
                if exc.message != last_message:
                    logger.error("%s", exc.message)
                last_message = exc.message

    def _affordable(self, granted: dict[str, MemoryLease]) -> list[str]:
        """Returns the engines with a new lease that is no smaller. A larger one counts only if
        there is room for it beside the memory that others have not given back."""
        stored_bytes = sum(lease.stored_kv_bytes for lease in self._sent.values())
        free_bytes = max(self._budget.total_bytes - self._budget.fixed_bytes - stored_bytes, 0)
        getting = []
        for key, lease in granted.items():
            sent = self._sent[key]
            more_bytes = lease.stored_kv_bytes - sent.stored_kv_bytes
            is_new = lease != sent or key in self._unsure
            if is_new and 0 <= more_bytes <= free_bytes:
                free_bytes -= more_bytes
                getting.append(key)
        return getting

    async def _reclaim(self) -> list[str]:
        """Sends smaller leases; returns the keys of engines that did not confirm in time."""
        granted = {key: self._budget.lease(key) for key in self._tenants}
        giving = [
            key
            for key, lease in granted.items()
            if self._sent[key].stored_kv_bytes > lease.stored_kv_bytes
        ]
        return await self._send(giving, granted)

    async def _send(self, keys: Collection[str], granted: dict[str, MemoryLease]) -> list[str]:
        """Sends the leases and waits; returns the keys of engines that did not confirm in time."""
        results = await asyncio.gather(*(self._send_one(key, granted[key]) for key in keys))
        return [key for key, confirmed in zip(keys, results, strict=True) if not confirmed]

    async def _send_one(self, key: str, lease: MemoryLease) -> bool:
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
            pass  # it uses no memory
        if self._tenants.get(key) is tenant:
            self._sent[key] = lease
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
