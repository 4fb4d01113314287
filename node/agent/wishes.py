"""What is wanted of each model's residency: by the settings, and by the routers that watch."""

from math import inf

from node.protocol.lifecycle import ModelPolicy, Policies
from node.settings import KEEP_ALIVE_S, Settings
from node.slots import Wishes


class WishList:
    """Owner of the routers' policies."""

    def __init__(self, settings: Settings) -> None:
        self._pins = frozenset(settings.pins)
        self._keep_alives_s = {"": KEEP_ALIVE_S, **dict(settings.keep_alives)}
        self._policies: dict[str, dict[str, ModelPolicy]] = {}
        """By router."""

    @property
    def pins(self) -> frozenset[str]:
        """Models that are pinned by the settings."""
        return self._pins

    def set(self, policies: Policies) -> None:
        """All that a router asks, in place of what it asked before."""
        self._policies[policies.router_id] = policies.models

    def of(self, name: str) -> Wishes:
        """Of several routers the one that keeps the model longer has its way."""
        asked = [models[name] for models in self._policies.values() if name in models]
        pinned = name in self._pins or any(each.pinned for each in asked)
        told_s = [each.keep_alive_s for each in asked if each.keep_alive_s is not None]
        if told_s:
            longest_s = max(inf if each == 0.0 else each for each in told_s)
            return Wishes(pinned, None if longest_s == inf else longest_s)
        return Wishes(pinned, self._keep_alives_s.get(name, self._keep_alives_s[""]))
