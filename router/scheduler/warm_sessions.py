"""The sessions that one model on one node serves: the tokens that its cache should have of them,
and the work that they are likely to bring."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import msgspec

RETURN_DECAY_S = 30.0
"""Seconds after which a quiet session returns with a probability of 1/e."""
FORGOTTEN_S = 20 * RETURN_DECAY_S
"""Seconds after which a quiet session is dropped."""
REBASE_S = 20 * RETURN_DECAY_S
"""Seconds after which weights are scaled anew."""
MIN_IDLE_SHARE = 0.2
"""Least idle share of a node's time that the estimate of a wait assumes, which limits it under
overload."""
_NOTHING = 1e-6
"""Upper bound of what rounding leaves of a sum that is 0."""


class Demand(msgspec.Struct, frozen=True):
    """Work that an active session brings to its node, in tokens rather than seconds, since it
    outlives the estimate of the node's speed. A token deep in a prompt counts as the number of
    tokens that take as long at the beginning."""

    turns_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Tokens to prefill per second."""
    squared_per_s: float = 0.0
    """Squared tokens of its turns per second. Converted to seconds, half of it is the mean wait of
    a request that comes at a random time."""


@dataclass(slots=True)
class _WarmSession:
    tokens: float
    demand: Demand
    touched_s: float
    """When it was last served here; the sessions are ordered by it."""
    used_s: float
    """The same, or the time when a turn of it last waited, if that is later."""
    weight: float
    """Probability that it returns, on the scale of `WarmSessions`."""


class WarmSessions:
    """Warm sessions, the least recently used first, which is the order in which caches evict.

    Each session is weighted by the probability that it returns. All probabilities fade at one rate,
    so weights are kept relative to that of a session used at `_base_s`: their sums are maintained,
    need no iteration, and fade when they are read.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _WarmSession] = OrderedDict()
        self.tokens = 0.0
        """Tokens of all sessions; shared prefixes count for each."""
        self._base_s = 0.0
        self._clear_sums()

    def _clear_sums(self) -> None:
        self._live = self._live_tokens = 0.0
        self._live_turns_per_s = self._live_tokens_per_s = self._live_squared_per_s = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def touch(self, session: str, tokens: float, demand: Demand, now_s: float) -> None:
        """Marks the session as used now, with so many tokens cached."""
        self.forget(session)
        self._forget_old(now_s)
        weight = self._weight(now_s)
        warm = self._sessions[session] = _WarmSession(tokens, demand, now_s, now_s, weight)
        self.tokens += tokens
        self._add(warm, weight)

    def expect(self, session: str, now_s: float) -> None:
        """Marks the session as certain to return, since its next turn waits."""
        warm = self._sessions.get(session)
        if warm is None or now_s <= warm.used_s:
            return
        weight = self._weight(now_s)
        self._add(warm, weight - warm.weight)
        warm.used_s, warm.weight = now_s, weight

    def forget(self, session: str) -> None:
        warm = self._sessions.pop(session, None)
        if warm is None:
            return
        if not self._sessions:
            self.tokens = 0.0
            self._clear_sums()  # with what rounding has left
            return
        self.tokens -= warm.tokens
        self._add(warm, -warm.weight)

    def live_tokens(self, now_s: float) -> float:
        """Tokens that sessions are likely to need again."""
        return max(0.0, self._live_tokens) * self._decay(now_s)

    def waits_s(
        self, work_s: float, own_session: str, now_s: float, token_s: float
    ) -> tuple[float, float]:
        """Expected waits if `own_session` runs a prefill of `work_s` here: the wait of its next
        turns for the other sessions, and the wait of the others for this prefill. A token at a
        prompt's beginning takes `token_s`.

        The first is the mean wait at a single server with known load and service times. The second:
        each session whose next turn comes during the prefill waits for the rest of it, and delays
        those that come before the node is idle again.
        """
        if not self._sessions:
            return 0.0, 0.0
        decay = self._decay(now_s)
        live, turns_per_s = self._live * decay, self._live_turns_per_s * decay
        tokens_per_s = self._live_tokens_per_s * decay
        squared_per_s = self._live_squared_per_s * decay
        own = self._sessions.get(own_session)
        if own is not None:
            own_live = own.weight * decay
            live -= own_live
            turns_per_s -= own_live * own.demand.turns_per_s
            tokens_per_s -= own_live * own.demand.tokens_per_s
            squared_per_s -= own_live * own.demand.squared_per_s
        idle_share = max(MIN_IDLE_SHARE, 1.0 - max(0.0, tokens_per_s) * token_s)
        wait_s = max(0.0, squared_per_s) * token_s**2 / 2.0 / idle_share
        if live < _NOTHING or turns_per_s < _NOTHING:
            return wait_s, 0.0
        mean_gap_s = live / turns_per_s
        direct_s = live * (work_s - mean_gap_s * (1.0 - exp(-work_s / mean_gap_s)))
        return wait_s, direct_s / idle_share

    def loss_s(
        self,
        tokens: float,
        excluding: str,
        now_s: float,
        recompute_s: Callable[[float, float], float],
    ) -> float:
        """Expected cost in seconds of evicting so many tokens from all sessions but `excluding`:
        from the least recently used session first, and from each one's end. `recompute_s` returns
        the seconds to get the tokens between two depths back."""
        loss_s = 0.0
        for session, warm in self._sessions.items():
            if tokens <= 0.0:
                break
            if session == excluding:
                continue
            evicted = min(tokens, warm.tokens)
            loss_s += recompute_s(warm.tokens - evicted, warm.tokens) * _return_probability(
                now_s - warm.used_s
            )
            tokens -= evicted
        return loss_s

    def slot_tokens(self, session: str) -> float:
        """Tokens that are lost if the session needs a slot: all of the least recently used
        session's; 0 if it has a slot already."""
        if session in self._sessions or not self._sessions:
            return 0.0
        return next(iter(self._sessions.values())).tokens

    def _forget_old(self, now_s: float) -> None:
        old = []
        for session, warm in self._sessions.items():
            if now_s - warm.touched_s < FORGOTTEN_S:
                break
            if now_s - warm.used_s >= FORGOTTEN_S:
                old.append(session)
        for session in old:
            self.forget(session)

    def _add(self, warm: _WarmSession, weight: float) -> None:
        demand = warm.demand
        self._live += weight
        self._live_tokens += weight * warm.tokens
        self._live_turns_per_s += weight * demand.turns_per_s
        self._live_tokens_per_s += weight * demand.tokens_per_s
        self._live_squared_per_s += weight * demand.squared_per_s

    def _weight(self, now_s: float) -> float:
        """The weight of a session that is used now."""
        if not self._sessions:
            self._base_s = now_s
        elif now_s - self._base_s > REBASE_S:
            self._rebase(now_s)
        return exp((now_s - self._base_s) / RETURN_DECAY_S)

    def _decay(self, now_s: float) -> float:
        """The factor by which a weight is a probability now."""
        return exp((self._base_s - now_s) / RETURN_DECAY_S)

    def _rebase(self, now_s: float) -> None:
        """Makes `now_s` the base, before the weights grow too large."""
        decay = self._decay(now_s)
        self._base_s = now_s
        self._clear_sums()
        for warm in self._sessions.values():
            warm.weight *= decay
            self._add(warm, warm.weight)


def _return_probability(idle_s: float) -> float:
    """The probability that a session returns after being idle for so long."""
    return exp(-idle_s / RETURN_DECAY_S) if idle_s > 0.0 else 1.0
