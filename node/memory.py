"""The Mac's memory limit, leased in bytes to the engines.

Only the agent sizes anything from the machine; an engine gets a lease and stays within it. What
the weights, the live KV and the process itself take is granted for good; what is then left is
shared out as stored KV, and taken back for the next load. Who gets how much follows from the set
of engines alone.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from node.errors import DoesNotFit, EngineDied, LoadFailure
from node.types import EngineStats, MemoryLease

GIB = 1024**3
OVERHEAD_BYTES = GIB // 2
"""An engine process without weights: interpreter, MLX, compiled graphs, scratch of a step."""
STORED_PERCENT = 90
"""How much of what is left is shared out; the rest is a margin for what no engine counts."""
GIVE_BACK_S = 30.0
"""How long an engine may take to come within a smaller lease."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """What one engine holds for good, and how much stored KV it may have beside that."""

    fixed: MemoryLease
    stored_limit_bytes: int | None


class Budget:
    """A number of bytes and who holds how many of them."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._grants: dict[str, _Grant] = {}

    @property
    def leased_bytes(self) -> int:
        """Without stored KV, which is given back for a load."""
        return sum(grant.fixed.total_bytes for grant in self._grants.values())

    @property
    def stored_bytes(self) -> int:
        """Granted as stored KV."""
        return sum(self._shares().values())

    def room_bytes(self, key: str) -> int:
        """What `key` may have for good beside the others; at least 0."""
        others = sum(each.fixed.total_bytes for name, each in self._grants.items() if name != key)
        return max(self.total_bytes - others, 0)

    def admit(self, key: str, fixed: MemoryLease, stored_limit_bytes: int | None = None) -> None:
        """Grants `fixed`, which has no stored KV, in place of what `key` held. Raises `DoesNotFit`
        and changes nothing if the others leave less."""
        room_bytes = self.room_bytes(key)
        if fixed.total_bytes > room_bytes:
            raise DoesNotFit(_refusal(key, fixed.total_bytes, room_bytes, self.total_bytes))
        self._grants[key] = _Grant(fixed, stored_limit_bytes)

    def correct(self, key: str, weight_bytes: int) -> None:
        """What the weights of `key` turned out to take; more leaves less for stored KV."""
        grant = self._grants[key]
        old = grant.fixed
        fixed = MemoryLease(weight_bytes, old.live_kv_bytes, 0, old.overhead_bytes)
        self._grants[key] = _Grant(fixed, grant.stored_limit_bytes)

    def release(self, key: str) -> None:
        """Takes back what `key` holds; nothing if it holds nothing."""
        self._grants.pop(key, None)

    def lease(self, key: str) -> MemoryLease:
        """All that `key` may hold now, stored KV included."""
        fixed = self._grants[key].fixed
        return MemoryLease(
            fixed.weight_bytes, fixed.live_kv_bytes, self._shares()[key], fixed.overhead_bytes
        )

    def _shares(self) -> dict[str, int]:
        """Stored KV by key: equal shares, and what one may not have goes to the others."""
        left_bytes = max(self.total_bytes - self.leased_bytes, 0) * STORED_PERCENT // 100
        shares: dict[str, int] = {}

        def most(key: str) -> int:
            limit_bytes = self._grants[key].stored_limit_bytes
            return left_bytes if limit_bytes is None else limit_bytes

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
        self._turn = asyncio.Lock()

    def join(self, key: str, tenant: Tenant, lease: MemoryLease) -> None:
        """An engine has started with `lease`."""
        self._tenants[key] = tenant
        self._told[key] = lease

    def leave(self, key: str) -> None:
        """The engine is gone, if there was one."""
        self._tenants.pop(key, None)
        self._told.pop(key, None)

    async def make_room(self) -> None:
        """Returns when no engine holds more than it is granted now. Raises `LoadFailure` if one
        does not give back in time."""
        async with self._turn:
            await self._take_back()

    async def settle(self) -> None:
        """Brings every engine to what it is granted now. Raises `LoadFailure` as `make_room`."""
        async with self._turn:
            await self._take_back()
            # Shares only fall with a grant and only rise with a release, so that what is told now
            # is free now; for a grant that came in between, `make_room` takes it back.
            granted = {key: self._budget.lease(key) for key in self._tenants}
            getting = [
                key
                for key, lease in granted.items()
                if lease.stored_kv_bytes >= self._told[key].stored_kv_bytes
                and lease != self._told[key]
            ]
            self._told |= {key: granted[key] for key in getting}
            await self._tell(getting, granted)

    async def _take_back(self) -> None:
        granted = {key: self._budget.lease(key) for key in self._tenants}
        giving = [
            key
            for key, lease in granted.items()
            if self._told[key].stored_kv_bytes > lease.stored_kv_bytes
        ]
        late = await self._tell(giving, granted)
        if late:
            raise LoadFailure(
                f"{' and '.join(late)} did not give back memory within {GIVE_BACK_S:.0f} s."
            )

    async def _tell(self, keys: Collection[str], granted: dict[str, MemoryLease]) -> list[str]:
        """Sends the leases and waits; the keys of those that did not answer in time."""
        answers = await asyncio.gather(*(self._tell_one(key, granted[key]) for key in keys))
        return [key for key, answered in zip(keys, answers, strict=True) if not answered]

    async def _tell_one(self, key: str, lease: MemoryLease) -> bool:
        tenant = self._tenants.get(key)
        if tenant is None:
            return True
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await tenant.set_lease(lease)
        except TimeoutError:
            return False
        except EngineDied:
            return True
        if self._tenants.get(key) is tenant:
            self._told[key] = lease
        return True


def _refusal(key: str, needed_bytes: int, free_bytes: int, total_bytes: int) -> str:
    if needed_bytes > total_bytes:
        advice = "Raise --memory-limit or choose a smaller model."
    else:
        advice = "Unload another model first, or raise --memory-limit."
    return (
        f"{key} needs {needed_bytes / GIB:.1f} GiB, but {free_bytes / GIB:.1f} GiB of the memory "
        f"limit of {total_bytes / GIB:.1f} GiB are free: {(needed_bytes - free_bytes) / GIB:.1f} "
        f"GiB too few. {advice}"
    )
