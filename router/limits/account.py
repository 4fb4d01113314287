"""Counts what a key or a team has used, and decides if its limits allow another request. Pure:
times are arguments."""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from router.quotas import Limits

MINUTE_S = 60.0
DAY_S = 86_400
ASSUMED_OUTPUT_TOKENS = 4096
"""Response tokens reserved for a request that sets no limit of its own, if so many are left."""
CONCURRENT_WAIT_S = 1.0
"""Wait that is suggested where another request must end first."""
_ROUNDING = 1e-6


def day_s(unix_s: float) -> float:
    """Unix time at which the calendar day began, in UTC."""
    return unix_s - unix_s % DAY_S


class Now(msgspec.Struct, frozen=True, gc=False):
    """A time on both clocks."""

    at_s: float
    """Monotonic time."""
    unix_s: float
    day: int
    """Number of the calendar day, in UTC."""

    @property
    def day_left_s(self) -> float:
        return DAY_S - self.unix_s % DAY_S


def now_of(at_s: float, unix_s: float) -> Now:
    return Now(at_s, unix_s, int(unix_s // DAY_S))


class RequestSize(msgspec.Struct, frozen=True, gc=False):
    """Tokens that a request may take."""

    prompt_tokens: int = 0
    """An estimate."""
    output_tokens: int | None = None
    """Limit that the request sets for its response, of all choices; None if it sets none."""
    most_prompt_tokens: int | None = None
    """Prompt tokens that no node can report in good faith; None if that is not known."""

    @property
    def least_tokens(self) -> int:
        """Tokens without those that are assumed for a response without a limit."""
        return self.prompt_tokens + (self.output_tokens or 0)

    def reserved_within(self, most: int | None) -> int:
        """Tokens to reserve where the tightest limit allows `most`."""
        if self.output_tokens is not None or most is None:
            return self.least_tokens
        return self.prompt_tokens + max(0, min(ASSUMED_OUTPUT_TOKENS, most - self.prompt_tokens))


class Refusal(NamedTuple):
    """The limit that does not allow a request."""

    limit: str
    """Name of the limit's field."""
    most: int
    used: int
    wait_s: float | None
    """Seconds until the request would be allowed; None if it never would."""


class Remaining(msgspec.Struct, frozen=True, gc=False):
    """The state of a limit, as response headers show it."""

    most: int
    left: int
    reset_s: float
    """Seconds until nothing counts as used, if nothing more is used."""


def tighter(one: Remaining | None, other: Remaining | None) -> Remaining | None:
    """The one of which less is left; None if there is neither."""
    if one is None or other is None:
        return one or other
    return other if other.left < one.left else one


@dataclass(slots=True)
class Bucket:
    """An amount that is added to at once, and drains by the limit's amount every minute."""

    used: float = 0.0
    at_s: float = 0.0
    """Time up to which it has drained."""

    def drain(self, limit: int, at_s: float) -> None:
        self.used = max(0.0, self.used - (at_s - self.at_s) * limit / MINUTE_S)
        self.at_s = at_s

    def wait_s(self, limit: int, amount: float) -> float:
        """Seconds until the amount can be added."""
        over = self.used + amount - limit
        return over * MINUTE_S / limit if over > _ROUNDING else 0.0

    def give_back(self, limit: int, amount: float, since_s: float) -> None:
        """Takes out an amount that was added `since_s` seconds ago, without what has drained of it
        meanwhile."""
        self.used = max(0.0, self.used - max(0.0, amount - since_s * limit / MINUTE_S))

    def remaining(self, limit: int) -> Remaining:
        left = max(0, int(limit - self.used + _ROUNDING))
        return Remaining(limit, left, self.used * MINUTE_S / limit)


@dataclass(slots=True)
class Account:
    """Requests and tokens of one key, or of all keys of one team."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    """Tokens of this minute, those reserved for open requests included."""
    day: int = 0
    day_tokens: int = 0
    """Tokens of the requests that ended this day."""
    reserved_tokens: int = 0
    """Tokens reserved for open requests."""
    open_requests: int = 0

    def advance(self, limits: Limits, now: Now) -> None:
        """Brings the account up to this time."""
        if limits.requests_per_minute:
            self.requests.drain(limits.requests_per_minute, now.at_s)
        if limits.tokens_per_minute:
            self.tokens.drain(limits.tokens_per_minute, now.at_s)
        if now.day != self.day:
            self.day, self.day_tokens = now.day, 0

    def refusal(self, limits: Limits, tokens: int, now: Now) -> Refusal | None:
        """The limit that does not allow a request of so many tokens; None if all allow it. The
        account must be up to this time."""
        return self._requests_refusal(limits) or self._tokens_refusal(limits, tokens, now)

    def _requests_refusal(self, limits: Limits) -> Refusal | None:
        if (most := limits.concurrent_requests) and self.open_requests >= most:
            return Refusal("concurrent_requests", most, self.open_requests, CONCURRENT_WAIT_S)
        most = limits.requests_per_minute
        wait_s = self.requests.wait_s(most, 1.0) if most else 0.0
        if most and wait_s:
            return Refusal("requests_per_minute", most, int(self.requests.used), wait_s)
        return None

    def _tokens_refusal(self, limits: Limits, tokens: int, now: Now) -> Refusal | None:
        if (most := limits.tokens_per_day) and self._today + tokens > most:
            wait_s = now.day_left_s if tokens <= most else None
            return Refusal("tokens_per_day", most, self._today, wait_s)
        most = limits.tokens_per_minute
        wait_s = self.tokens.wait_s(most, tokens) if most else 0.0
        if most and wait_s:
            used = int(self.tokens.used)
            return Refusal("tokens_per_minute", most, used, wait_s if tokens <= most else None)
        return None

    def take(self, tokens: int) -> None:
        """Counts a request that begins, and reserves its tokens."""
        self.requests.used += 1.0
        self.tokens.used += tokens
        self.reserved_tokens += tokens
        self.open_requests += 1

    def settle(self, limits: Limits, reserved: int, used: int, since_s: float) -> None:
        """Replaces the tokens that were reserved `since_s` seconds ago by those that were used."""
        self.reserved_tokens -= reserved
        self.day_tokens += used
        if used > reserved:
            self.tokens.used += used - reserved
        elif most := limits.tokens_per_minute:
            self.tokens.give_back(most, reserved - used, since_s)

    def give_back_request(self, limits: Limits, since_s: float) -> None:
        """Uncounts a request that never ran."""
        if most := limits.requests_per_minute:
            self.requests.give_back(most, 1.0, since_s)

    @property
    def _today(self) -> int:
        return self.day_tokens + self.reserved_tokens

    # --- reading ---

    def requests_left(self, limits: Limits) -> Remaining | None:
        """The state of the limit on requests; None if there is none."""
        most = limits.requests_per_minute
        return self.requests.remaining(most) if most else None

    def tokens_left(self, limits: Limits, now: Now) -> Remaining | None:
        """The state of the tighter limit on tokens; None if there is none."""
        minute = day = None
        if most := limits.tokens_per_minute:
            minute = self.tokens.remaining(most)
        if most := limits.tokens_per_day:
            left = max(0, most - self._today)
            day = Remaining(most, left, now.day_left_s if self._today else 0.0)
        return tighter(minute, day)
