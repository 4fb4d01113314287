"""The residency policy: which models are pinned and how long they are kept, by settings and
routers."""

from dataclasses import dataclass
from math import inf

from node.engines.slot import Wishes
from node.protocol.lifecycle import POLICIES_LAPSE_S, Policies
from node.settings import KEEP_ALIVE_S, Settings


@dataclass(slots=True)
class _Asked:
    """Policies of one router, and the time since which it has not repeated them."""

    policies: Policies
    since_s: float | None = None
    """Monotonic seconds; None until `lapse` has run."""


class WishList:
    """Owner of the routers' policies."""

    def __init__(self, settings: Settings) -> None:
        self._pins = frozenset(settings.pins)
        self._keep_alives_s = {"": KEEP_ALIVE_S, **dict(settings.keep_alives)}
        self._asked: dict[str, _Asked] = {}
        """Policies by router id."""

    @property
    def rests(self) -> bool:
        """True if a router has the node under maintenance."""
        return any(each.policies.rests for each in self._asked.values())

    @property
    def pins(self) -> frozenset[str]:
        """Models that the settings pin, and that are therefore to be loaded."""
        return frozenset() if self.rests else self._pins

    def set(self, policies: Policies) -> None:
        """Replaces all policies of one router."""
        self._asked.pop(policies.router_id, None)
        if policies.models or policies.rests:
            self._asked[policies.router_id] = _Asked(policies)

    def lapse(self, now_s: float) -> tuple[str, ...]:
        """Drops the policies of routers that have not repeated them for too long; returns the ids
        of those routers."""
        for each in self._asked.values():
            if each.since_s is None:
                each.since_s = now_s
        gone = tuple(
            router_id
            for router_id, each in self._asked.items()
            if each.since_s is not None and now_s - each.since_s >= POLICIES_LAPSE_S
        )
        for router_id in gone:
            del self._asked[router_id]
        return gone

    def of(self, name: str) -> Wishes:
        """Returns the residency of one model. If routers differ, the longest keep-alive applies;
        while the node rests, nothing is pinned."""
        models = (each.policies.models for each in self._asked.values())
        asked = [each[name] for each in models if name in each]
        is_pinned = name in self._pins or any(each.pinned for each in asked)
        pinned = is_pinned and not self.rests
        told_s = [each.keep_alive_s for each in asked if each.keep_alive_s is not None]
        if told_s:
            longest_s = max(inf if each == 0.0 else each for each in told_s)
            return Wishes(pinned, None if longest_s == inf else longest_s)
        return Wishes(pinned, self._keep_alives_s.get(name, self._keep_alives_s[""]))
