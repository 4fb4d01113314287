from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.limits.account import (
    ASSUMED_OUTPUT_TOKENS,
    DAY_S,
    Account,
    Bucket,
    Now,
    Remaining,
    RequestSize,
    day_s,
    now_of,
)
from router.quotas import Limits

NOON_S = 20_000 * DAY_S + DAY_S / 2


def at(seconds: float) -> Now:
    return now_of(seconds, NOON_S + seconds)


def refused(account: Account, limits: Limits, tokens: int, seconds: float) -> str:
    """Name of the limit that refuses; the request is counted if none does."""
    account.advance(limits, at(seconds))
    refusal = account.refusal(limits, tokens, at(seconds))
    if refusal is None:
        account.take(tokens)
        return ""
    return refusal.limit


def test_a_minute_s_requests_may_come_at_once_and_then_at_their_rate() -> None:
    account, limits = Account(), Limits(requests_per_minute=6)
    assert [refused(account, limits, 0, 0.0) for _ in range(7)] == [""] * 6 + [
        "requests_per_minute"
    ]
    assert refused(account, limits, 0, 9.9) == "requests_per_minute"
    assert refused(account, limits, 0, 10.0) == ""
    assert refused(account, limits, 0, 10.0) == "requests_per_minute"
    assert [refused(account, limits, 0, 70.0) for _ in range(7)].count("") == 6


def test_a_refusal_says_when_the_request_would_be_allowed() -> None:
    account, limits = Account(), Limits(tokens_per_minute=600)
    account.advance(limits, at(0.0))
    account.take(500)
    refusal = account.refusal(limits, 300, at(0.0))
    assert refusal is not None and refusal.wait_s == pytest.approx(20.0)
    assert (refusal.most, refusal.used) == (600, 500)
    account.advance(limits, at(20.0))
    assert account.refusal(limits, 300, at(20.0)) is None


def test_a_request_that_exceeds_a_whole_limit_is_never_allowed() -> None:
    account = Account()
    for limits in (Limits(tokens_per_minute=600), Limits(tokens_per_day=600)):
        refusal = account.refusal(limits, 601, at(0.0))
        assert refusal is not None and refusal.wait_s is None


def test_the_tokens_of_a_day_end_with_the_day_in_utc() -> None:
    account, limits = Account(), Limits(tokens_per_day=100)
    assert refused(account, limits, 60, 0.0) == ""
    account.settle(limits, 60, 70, 1.0)
    assert refused(account, limits, 40, 1.0) == "tokens_per_day"
    refusal = account.refusal(limits, 40, at(1.0))
    assert refusal is not None and refusal.wait_s == pytest.approx(DAY_S / 2 - 1)
    assert refused(account, limits, 40, DAY_S / 2) == ""
    assert day_s(NOON_S) == NOON_S - DAY_S / 2


def test_tokens_reserved_before_midnight_count_on_the_day_that_their_request_ends() -> None:
    account, limits = Account(), Limits(tokens_per_day=100)
    assert refused(account, limits, 60, DAY_S / 2 - 1) == ""
    assert refused(account, limits, 50, DAY_S / 2 + 1) == "tokens_per_day"
    account.settle(limits, 60, 20, 2.0)
    assert (account.day_tokens, account.reserved_tokens) == (20, 0)
    assert refused(account, limits, 50, DAY_S / 2 + 1) == ""


def test_requests_at_once_are_bounded() -> None:
    account, limits = Account(), Limits(concurrent_requests=2)
    assert [refused(account, limits, 0, 0.0) for _ in range(3)] == ["", "", "concurrent_requests"]
    account.open_requests -= 1
    assert refused(account, limits, 0, 0.0) == ""


def test_what_was_not_used_is_given_back_without_what_has_drained_of_it() -> None:
    limits = Limits(tokens_per_minute=600)
    soon, later = Account(), Account()
    for account in (soon, later):
        account.advance(limits, at(0.0))
        account.take(500)
    soon.advance(limits, at(10.0))
    soon.settle(limits, 500, 100, 10.0)
    assert soon.tokens.used == 100.0  # 400 are left of the reserved ones, and 300 of them unused
    later.advance(limits, at(300.0))
    later.take(600)
    later.settle(limits, 500, 0, 300.0)
    assert later.tokens.used == 600.0


def test_more_than_was_reserved_is_a_debt_that_drains() -> None:
    account, limits = Account(), Limits(tokens_per_minute=600)
    assert refused(account, limits, 100, 0.0) == ""
    account.settle(limits, 100, 1300, 0.0)
    assert account.tokens_left(limits, at(0.0)) == Remaining(600, 0, 130.0)
    assert refused(account, limits, 0, 60.0) == "tokens_per_minute"
    assert refused(account, limits, 500, 121.0) == ""


@pytest.mark.parametrize(
    ("size", "most", "reserved"),
    [
        (RequestSize(100, 50), 1000, 150),
        (RequestSize(100, 5000), 1000, 5100),
        (RequestSize(100), 1000, 1000),
        (RequestSize(100), 1_000_000, 100 + ASSUMED_OUTPUT_TOKENS),
        (RequestSize(2000), 1000, 2000),
        (RequestSize(100), None, 100),
        (RequestSize(0, 0), 1000, 0),
    ],
)
def test_a_response_without_a_limit_is_assumed_to_fit(
    size: RequestSize, most: int | None, reserved: int
) -> None:
    assert size.reserved_within(most) == reserved


def test_a_changed_limit_applies_to_what_is_used_already() -> None:
    account = Account()
    assert refused(account, Limits(requests_per_minute=1), 0, 0.0) == ""
    assert refused(account, Limits(requests_per_minute=2), 0, 0.0) == ""
    assert refused(account, Limits(requests_per_minute=1), 0, 0.0) == "requests_per_minute"


def test_the_tighter_limit_on_tokens_is_shown() -> None:
    account, limits = Account(), Limits(tokens_per_minute=1000, tokens_per_day=800)
    account.advance(limits, at(0.0))
    account.take(300)
    assert account.tokens_left(limits, at(0.0)) == Remaining(800, 500, DAY_S / 2)
    assert account.requests_left(limits) is None


@given(
    st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 30), st.integers(0, 1200)), max_size=60)
)
def test_no_minute_has_more_than_twice_its_limit(limit: int, asks: list[tuple[float, int]]) -> None:
    """A full bucket, and what drains meanwhile."""
    bucket, now_s, admitted = Bucket(), 0.0, []
    for pause_s, amount in asks:
        now_s += pause_s
        bucket.drain(limit, now_s)
        if not bucket.wait_s(limit, amount):
            bucket.used += amount
            admitted.append((now_s, amount))
    for begin_s, _ in admitted:
        within = [amount for at_s, amount in admitted if begin_s <= at_s < begin_s + 60]
        assert sum(within) <= 2 * limit + 1
