"""The sessions that one model of one node serves: what its cache holds of them, and how much they
are likely to ask of it, as far as can be known."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import msgspec

MEMORY_S = 30.0
"""After so long without a request, a session comes back with a probability of 1/e."""
FORGOTTEN_S = 20 * MEMORY_S
"""After so long it is as good as gone."""
MIN_IDLE_SHARE = 0.2
"""Of a node's time: beyond that load a wait is not believed to grow."""
_NOTHING = 1e-6
"""What rounding may leave of sums that are 0."""


class Demand(msgspec.Struct, frozen=True):
    """What a session asks of its node while it lives: in tokens, since it lasts longer than what is
    believed of the node's speed. One that lies deep in its prompt counts for as many as take as
    long at the beginning."""

    turns_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """To prefill."""
    squared_per_s: float = 0.0
    """The same, each turn's tokens counted once for each of them: in time, half of it is what
    somebody waits who comes at any time."""


@dataclass(slots=True)
class _Warm:
    tokens: float
    demand: Demand
    touched_s: float
    """When it was served here, by which they are ordered."""
    used_s: float
    """The same, or later when a turn of it waited."""


class WarmSessions:
    """The least recently used first: as caches give up what they hold.

    Each session counts as much as it is probable that it comes back. Since all probabilities fade
    at one rate, their sums are kept and need not be made anew.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Warm] = OrderedDict()
        self.tokens = 0.0
        """Of all of them, prefixes that they share counted for each."""
        self._live = self._live_tokens = 0.0
        self._live_turns_per_s = self._live_tokens_per_s = self._live_squared_per_s = 0.0
        self._at_s = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def touch(self, session: str, tokens: float, demand: Demand, now_s: float) -> None:
        """The session has been used, and has so many tokens cached."""
        self._fade(now_s)
        self.forget(session)
        self._forget_old(now_s)
        self._sessions[session] = _Warm(tokens, demand, now_s, now_s)
        self.tokens += tokens
        self._live += 1.0
        self._live_tokens += tokens
        self._live_turns_per_s += demand.turns_per_s
        self._live_tokens_per_s += demand.tokens_per_s
        self._live_squared_per_s += demand.squared_per_s

    def expect(self, session: str, now_s: float) -> None:
        """The session's next turn has come, and waits: it is certain to come back."""
        warm = self._sessions.get(session)
        if warm is None or now_s <= warm.used_s:
            return
        self._fade(now_s)
        more = 1.0 - _comes_back(now_s - warm.used_s)
        warm.used_s = now_s
        self._live += more
        self._live_tokens += more * warm.tokens
        self._live_turns_per_s += more * warm.demand.turns_per_s
        self._live_tokens_per_s += more * warm.demand.tokens_per_s
        self._live_squared_per_s += more * warm.demand.squared_per_s

    def forget(self, session: str) -> None:
        warm = self._sessions.pop(session, None)
        if warm is None:
            return
        self.tokens -= warm.tokens
        live = _comes_back(self._at_s - warm.used_s)
        self._live = max(0.0, self._live - live)
        self._live_tokens = max(0.0, self._live_tokens - live * warm.tokens)
        self._live_turns_per_s = max(0.0, self._live_turns_per_s - live * warm.demand.turns_per_s)
        self._live_tokens_per_s = max(
            0.0, self._live_tokens_per_s - live * warm.demand.tokens_per_s
        )
        self._live_squared_per_s = max(
            0.0, self._live_squared_per_s - live * warm.demand.squared_per_s
        )

    def live_tokens(self, now_s: float) -> float:
        """That sessions are likely to need again."""
        return self._live_tokens * _comes_back(now_s - self._at_s)

    def waits_s(
        self, work_s: float, besides: str, now_s: float, token_s: float
    ) -> tuple[float, float]:
        """Of a session's turn with so long a prefill, what is likely to be waited: by its next
        turns for those of the others, and by the others for it. A token at a prompt's beginning
        takes `token_s`.

        The former is the mean wait at a single server whose load and lengths of service are known.
        The latter: each that has its next turn meanwhile waits for what is left of the prefill, and
        passes its delay on to those that come before the node is idle again.
        """
        if not self._sessions:
            return 0.0, 0.0
        faded = _comes_back(now_s - self._at_s)
        live, turns_per_s = self._live * faded, self._live_turns_per_s * faded
        tokens_per_s = self._live_tokens_per_s * faded
        squared_per_s = self._live_squared_per_s * faded
        own = self._sessions.get(besides)
        if own is not None:
            own_live = _comes_back(now_s - own.used_s)
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
        self, tokens: float, besides: str, now_s: float, price: Callable[[float, float], float]
    ) -> float:
        """What is lost if so many tokens are pushed out, of any session but one: of the least
        recently used first, each from its end. `price` are the seconds that the tokens between two
        depths cost to get back."""
        loss_s = 0.0
        for session, warm in self._sessions.items():
            if tokens <= 0.0:
                break
            if session == besides:
                continue
            taken = min(tokens, warm.tokens)
            loss_s += price(warm.tokens - taken, warm.tokens) * _comes_back(now_s - warm.used_s)
            tokens -= taken
        return loss_s

    def slot_tokens(self, session: str) -> float:
        """What the least recently used session loses where a session needs its slot: all of it;
        nothing for one that has a slot of its own."""
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

    def _fade(self, now_s: float) -> None:
        faded = _comes_back(now_s - self._at_s)
        self._live *= faded
        self._live_tokens *= faded
        self._live_turns_per_s *= faded
        self._live_tokens_per_s *= faded
        self._live_squared_per_s *= faded
        self._at_s = now_s


def _comes_back(idle_s: float) -> float:
    """The probability that a session does."""
    return exp(-idle_s / MEMORY_S) if idle_s > 0.0 else 1.0
