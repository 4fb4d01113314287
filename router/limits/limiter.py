"""Holds requests to the limits of their keys and teams.

A request reserves its estimated tokens when it is admitted. Once all its attempts have ended, the
tokens that they took replace the reserved ones.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from node.protocol.paths import ApiDialect
from router.errors import LimitExceeded
from router.limits.account import Account, Now, Refusal, Remaining, RequestSize, now_of, tighter
from router.limits.headers import Headers, limit_headers
from router.limits.wording import refusal_text
from router.quotas import Limits, Quota
from router.types import Caller

MOST_WAIT_S = 60
"""Longest wait after which a client may retry by itself; after a longer one a person decides."""


@dataclass(slots=True)
class Reservation:
    """A request's share of the accounts of its key and team."""

    held: tuple[tuple[Quota, Account], ...]
    size: RequestSize
    tokens: int
    """Reserved tokens."""
    at_s: float
    headers: Headers
    used_tokens: int = 0
    """Tokens of the attempts that have ended."""
    open_attempts: int = 0
    ran: bool = False
    """True once it has been sent to a node."""
    is_closed: bool = False


class Limiter:
    """Owner of the accounts of all keys and teams with limits, and of the open reservations."""

    def __init__(
        self,
        day_tokens: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`day_tokens` has the tokens that were used this day before the router's start, by
        subject."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._accounts: dict[str, Account] = {}
        self._open: dict[str, Reservation] = {}
        for subject, tokens in (day_tokens or {}).items():
            self.set_day_tokens(subject, tokens)

    # --- admission ---

    def check(self, caller: Caller, dialect: ApiDialect) -> None:
        """Raises `LimitExceeded` if no request of the caller is allowed now, however small."""
        self._admit(self._held(caller), RequestSize(), 0, dialect)

    def reserve(
        self, request_id: str, caller: Caller, size: RequestSize, dialect: ApiDialect
    ) -> Headers:
        """Counts a request and reserves its tokens until `close`; returns the headers of its
        response. Another ticket of the same request changes nothing. Raises `LimitExceeded`."""
        if (known := self._open.get(request_id)) is not None:
            return known.headers
        held = self._held(caller)
        most = _tightest(held)
        tokens = size.reserved_within(most)
        now = self._admit(held, size, tokens, dialect)
        for _quota, account in held:
            account.take(tokens)
        headers = _headers(held, dialect, now)
        self._open[request_id] = Reservation(held, size, tokens, now.at_s, headers)
        return headers

    def _held(self, caller: Caller) -> tuple[tuple[Quota, Account], ...]:
        accounts = self._accounts
        return tuple(
            (quota, accounts.get(quota.subject) or accounts.setdefault(quota.subject, Account()))
            for quota in caller.quotas
        )

    def _admit(
        self,
        held: tuple[tuple[Quota, Account], ...],
        size: RequestSize,
        tokens: int,
        dialect: ApiDialect,
    ) -> Now:
        """Brings the accounts up to now. Raises `LimitExceeded`."""
        now = now_of(self._clock(), self._wall_clock())
        for quota, account in held:
            account.advance(quota.limits, now)
        for quota, account in held:
            refusal = account.refusal(quota.limits, tokens, now)
            if refusal is not None:
                raise _error(quota, refusal, size, _headers(held, dialect, now))
        return now

    # --- the course of a request ---

    def opened(self, request_id: str) -> None:
        """Records that an attempt of the request has been sent to a node."""
        if (reservation := self._open.get(request_id)) is not None:
            reservation.ran = True
            reservation.open_attempts += 1

    def settled(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Records the tokens of an attempt that has ended. Tokens beyond what the request allows
        are not charged."""
        reservation = self._open.get(request_id)
        if reservation is None:
            return
        size = reservation.size
        if size.most_prompt_tokens is not None:
            prompt_tokens = min(prompt_tokens, size.most_prompt_tokens)
        if size.output_tokens is not None:
            output_tokens = min(output_tokens, size.output_tokens)
        self._end_attempt(request_id, reservation, prompt_tokens + output_tokens)

    def settled_unreported(
        self, request_id: str, *, computed: bool, output_tokens: int | None = 0
    ) -> None:
        """Records the end of an attempt whose prompt's tokens are not known: none if nothing was
        `computed`, else the estimate and `output_tokens`; if these are not known either (None), all
        that is reserved."""
        reservation = self._open.get(request_id)
        if reservation is None:
            return
        tokens = reservation.tokens
        if output_tokens is not None:
            tokens = reservation.size.prompt_tokens + output_tokens
        self._end_attempt(request_id, reservation, tokens if computed else 0)

    def close(self, request_id: str) -> None:
        """Ends a request, whose attempts may still have to be settled."""
        reservation = self._open.get(request_id)
        if reservation is None:
            return
        reservation.is_closed = True
        since_s = self._clock() - reservation.at_s
        for quota, account in reservation.held:
            account.open_requests -= 1
            if not reservation.ran and reservation.tokens:
                account.give_back_request(quota.limits, since_s)
        self._finish(request_id, reservation)

    def _end_attempt(self, request_id: str, reservation: Reservation, tokens: int) -> None:
        reservation.used_tokens += tokens
        reservation.open_attempts -= 1
        self._finish(request_id, reservation)

    def _finish(self, request_id: str, reservation: Reservation) -> None:
        """Replaces the reserved tokens by the used ones once nothing more can come."""
        if not reservation.is_closed or reservation.open_attempts:
            return
        del self._open[request_id]
        now = now_of(self._clock(), self._wall_clock())
        for quota, account in reservation.held:
            account.advance(quota.limits, now)
            since_s = now.at_s - reservation.at_s
            account.settle(quota.limits, reservation.tokens, reservation.used_tokens, since_s)

    # --- keys and teams ---

    def set_day_tokens(self, subject: str, tokens: int) -> None:
        """Begins to count a subject that has used so many tokens this day."""
        day = now_of(0.0, self._wall_clock()).day
        self._accounts[subject] = Account(day=day, day_tokens=tokens)

    def recount(self, subject: str, tokens: int) -> None:
        """Sets the tokens of this day of a subject that is counted; of another one nothing."""
        if (account := self._accounts.get(subject)) is not None:
            account.day, account.day_tokens = now_of(0.0, self._wall_clock()).day, tokens

    def forget(self, subject: str) -> None:
        """Drops the account of a revoked key or deleted team."""
        self._accounts.pop(subject, None)

    def account(self, subject: str, limits: Limits) -> tuple[Account, Now]:
        """The account, up to now; an empty one if nothing is counted."""
        account = self._accounts.get(subject) or Account()
        now = now_of(self._clock(), self._wall_clock())
        account.advance(limits, now)
        return account, now


def _tightest(held: tuple[tuple[Quota, Account], ...]) -> int | None:
    """The lowest of the limits on tokens; None if there is none."""
    tightest: int | None = None
    for quota, _account in held:
        limits = quota.limits
        for most in (limits.tokens_per_minute, limits.tokens_per_day):
            if most is not None and (tightest is None or most < tightest):
                tightest = most
    return tightest


def _headers(held: tuple[tuple[Quota, Account], ...], dialect: ApiDialect, now: Now) -> Headers:
    """Headers with the state of the tightest limits."""
    requests: Remaining | None = None
    tokens: Remaining | None = None
    for quota, account in held:
        requests = tighter(requests, account.requests_left(quota.limits))
        tokens = tighter(tokens, account.tokens_left(quota.limits, now))
    return limit_headers(dialect, requests, tokens, now)


def _error(quota: Quota, refusal: Refusal, size: RequestSize, headers: Headers) -> LimitExceeded:
    wait_s = None if refusal.wait_s is None else max(1, ceil(refusal.wait_s))
    text = refusal_text(quota.owner, refusal, size, wait_s)
    return LimitExceeded(
        text,
        limit=refusal.limit,
        retry_after_s=wait_s,
        limit_headers=headers,
        is_final=wait_s is None or wait_s > MOST_WAIT_S,
    )
