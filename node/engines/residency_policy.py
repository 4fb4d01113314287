"""The residency policy: which models are pinned and how long they are kept, by settings and
routers."""

from dataclasses import dataclass
from math import inf

from node.protocol.lifecycle import POLICIES_LAPSE_S, Policies
from node.settings import KEEP_ALIVE_S, Settings


@dataclass(frozen=True, slots=True)
class Residency:
    """Residency that people and routers want for one model."""

    pinned: bool = False
    keep_alive_s: float | None = None
    """None keeps it without limit."""


@dataclass(slots=True)
class _RouterPolicies:
    """Policies of one router, and the time since which it has not repeated them."""

    policies: Policies
    since_s: float | None = None
    """Monotonic seconds; None until `lapse` has run."""


class ResidencyPolicy:
    """Owner of the routers' policies."""

    def __init__(self, settings: Settings) -> None:
        self._pins = frozenset[str]()
        self._keep_alives_s: dict[str, float | None] = {}
        self.set_own(settings)
        self._by_router: dict[str, _RouterPolicies] = {}
        """Policies by router id."""
        self._by_client_s: dict[str, float | None] = {}
        """Keep-alives that clients without a router have set last, by model; None: no limit."""

    def set_own(self, settings: Settings) -> None:
        """Changes the policies that the settings request."""
        self._pins = frozenset(settings.pins)
        self._keep_alives_s = {"": KEEP_ALIVE_S, **dict(settings.keep_alives)}

    @property
    def in_maintenance(self) -> bool:
        """True if a router has the node under maintenance."""
        return any(each.policies.in_maintenance for each in self._by_router.values())

    @property
    def pins(self) -> frozenset[str]:
        """Models that the settings pin, and that are therefore to be loaded."""
        return frozenset() if self.in_maintenance else self._pins

    def set(self, policies: Policies) -> None:
        """Replaces all policies of one router."""
        self._by_router.pop(policies.router_id, None)
        if policies.models or policies.in_maintenance:
            self._by_router[policies.router_id] = _RouterPolicies(policies)

    def keep(self, name: str, keep_alive_s: float) -> None:
        """Sets the keep-alive of a model on this node, `inf` for no limit, as long as no router
        has one."""
        self._by_client_s[name] = None if keep_alive_s == inf else keep_alive_s

    def lapse(self, now_s: float) -> tuple[str, ...]:
        """Drops the policies of routers that have not repeated them for too long; returns the ids
        of those routers."""
        for each in self._by_router.values():
            if each.since_s is None:
                each.since_s = now_s
        gone = tuple(
            router_id
            for router_id, each in self._by_router.items()
            if each.since_s is not None and now_s - each.since_s >= POLICIES_LAPSE_S
        )
        for router_id in gone:
            del self._by_router[router_id]
        return gone

    def of(self, name: str) -> Residency:
        """Returns the residency of one model. If routers differ, the longest keep-alive applies;
        under maintenance, nothing is pinned."""
        models = (each.policies.models for each in self._by_router.values())
        policies = [each[name] for each in models if name in each]
        is_pinned = name in self._pins or any(each.pinned for each in policies)
        pinned = is_pinned and not self.in_maintenance
        keep_alives_s = [each.keep_alive_s for each in policies if each.keep_alive_s is not None]
        if keep_alives_s:
            longest_s = max(inf if each == 0.0 else each for each in keep_alives_s)
            return Residency(pinned, None if longest_s == inf else longest_s)
        own_s = self._keep_alives_s.get(name, self._keep_alives_s[""])
        return Residency(pinned, self._by_client_s.get(name, own_s))
