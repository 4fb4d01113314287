from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.protocol.paths import ApiDialect
from router.errors import LimitExceeded
from router.limits.account import RequestSize
from router.limits.limiter import Limiter
from router.quotas import Limits, Quota
from router.types import Caller
from tests.fakes import FakeClock
from tests.router.conftest import ticket

OPENAI, ANTHROPIC = ApiDialect.OPENAI, ApiDialect.ANTHROPIC
SIZE = RequestSize(100, 50)


class World:
    def __init__(self, **day_tokens: int) -> None:
        self.clock = FakeClock()
        self.wall = FakeClock(86_400.0 * 20_000)
        self.limiter = Limiter(day_tokens, self.clock, self.wall)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wall.advance(seconds)

    def reserve(self, caller: Caller, request_id: str = "r", size: RequestSize = SIZE) -> None:
        self.limiter.reserve(request_id, caller, size, OPENAI)

    def used(self, subject: str, **limits: int) -> tuple[int, int, int]:
        """Tokens of this day, reserved ones, and open requests."""
        account, _ = self.limiter.account(subject, Limits(**limits))
        return account.day_tokens, account.reserved_tokens, account.open_requests


def caller(*quotas: Quota) -> Caller:
    return replace(ticket().caller, quotas=quotas)


def key(name: str = "k", **limits: int) -> Quota:
    return Quota(name, "This API key", Limits(**limits))


def team(**limits: int) -> Quota:
    return Quota("t", "The team lab of this API key", Limits(**limits))


def refusal(world: World, who: Caller, size: RequestSize = SIZE) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as refused:
        world.reserve(who, "x", size)
    return refused.value


def test_a_request_reserves_its_tokens_and_settles_what_it_used() -> None:
    world, who = World(), caller(key(tokens_per_day=1000))
    world.reserve(who)
    assert world.used("k") == (0, 150, 1)
    world.limiter.opened("r")
    world.limiter.close("r")
    assert world.used("k") == (0, 150, 0)
    world.limiter.settled("r", 110, 20)
    assert world.used("k") == (130, 0, 0)
    world.limiter.settled("r", 110, 20)
    assert world.used("k") == (130, 0, 0)


def test_all_attempts_of_a_request_count() -> None:
    world, who = World(), caller(key(tokens_per_day=1000))
    world.reserve(who)
    world.limiter.opened("r")
    world.limiter.settled("r", 100, 0)
    world.limiter.opened("r")
    assert world.used("k") == (0, 150, 1)
    world.limiter.settled("r", 100, 30)
    world.limiter.close("r")
    assert world.used("k") == (230, 0, 0)


def test_a_request_that_never_ran_is_given_back() -> None:
    world, who = World(), caller(key(tokens_per_minute=150, requests_per_minute=1))
    world.reserve(who)
    assert "1 request a minute" in refusal(world, who).message
    world.limiter.close("r")
    assert world.used("k") == (0, 0, 0)
    world.reserve(who)


def test_a_request_that_only_counts_tokens_is_a_request() -> None:
    world, who = World(), caller(key(requests_per_minute=1))
    world.reserve(who, "r", RequestSize(0, 0))
    world.limiter.close("r")
    assert "1 request a minute" in refusal(world, who).message


@pytest.mark.parametrize(
    ("computed", "output_tokens", "charged"),
    [(True, None, 150), (True, 7, 107), (True, 0, 100), (False, 0, 0)],
)
def test_an_attempt_without_a_usage_record_is_charged_as_far_as_it_may_have_come(
    computed: bool, output_tokens: int | None, charged: int
) -> None:
    world, who = World(), caller(key(tokens_per_day=1000))
    world.reserve(who)
    world.limiter.opened("r")
    world.limiter.settled_unreported("r", computed=computed, output_tokens=output_tokens)
    world.limiter.close("r")
    assert world.used("k") == (charged, 0, 0)


def test_a_node_cannot_charge_more_than_the_request_allows() -> None:
    world, who = World(), caller(key(tokens_per_day=10_000))
    world.reserve(who, "r", RequestSize(100, 50, 2000))
    world.limiter.opened("r")
    world.limiter.settled("r", 1_000_000_000, 1_000_000_000)
    world.limiter.close("r")
    assert world.used("k") == (2050, 0, 0)


def test_a_team_s_limits_bound_the_sum_of_its_keys() -> None:
    world = World()
    shared = team(requests_per_minute=2)
    one, two = caller(key("k1", requests_per_minute=5), shared), caller(shared)
    world.reserve(one, "a")
    world.reserve(two, "b")
    for who in (one, two):
        error = refusal(world, who)
        assert error.message.startswith("The team lab of this API key may make 2 requests a minute")
        assert error.retry_after_s == 30
    assert (b"x-ratelimit-limit-requests", b"2") in error.headers()


def test_a_refused_request_takes_nothing() -> None:
    world = World()
    who = caller(key(tokens_per_day=1000), team(tokens_per_day=200))
    world.reserve(who)
    for _ in range(3):
        refusal(world, who)
    assert world.used("k") == (0, 150, 1)
    assert world.used("t") == (0, 150, 1)


def test_the_next_ticket_of_a_request_takes_nothing() -> None:
    world, who = World(), caller(key(requests_per_minute=1))
    world.reserve(who)
    world.reserve(who)
    assert world.used("k") == (0, 150, 1)


def test_a_request_is_refused_before_its_body_is_read_if_none_is_allowed() -> None:
    world, who = World(), caller(key(tokens_per_minute=100))
    world.limiter.check(who, OPENAI)
    world.reserve(who, "r", RequestSize(10, 10))
    world.limiter.check(who, OPENAI)
    world.limiter.opened("r")
    world.limiter.settled("r", 200, 5)
    world.limiter.close("r")
    with pytest.raises(LimitExceeded, match="100 tokens a minute; 205 are used"):
        world.limiter.check(who, OPENAI)


def test_tokens_of_before_the_start_count_on_their_day() -> None:
    world, who = World(k=900), caller(key(tokens_per_day=1000))
    error = refusal(world, who)
    assert error.message == (
        "This API key may use 1,000 tokens a day; 900 are used or reserved, and this request may "
        "take 150. A new day begins at 00:00 UTC, in 24 h 0 min."
    )
    assert (error.retry_after_s, error.is_final) == (86_400, True)
    world.advance(86_400)
    world.reserve(who)


@pytest.mark.parametrize(
    ("limits", "size", "message", "retry_after_s"),
    [
        (
            {"tokens_per_minute": 120},
            SIZE,
            "This API key may use 120 tokens a minute, and this request may take 150; shorten the "
            "prompt or lower `max_tokens`.",
            None,
        ),
        (
            {"tokens_per_minute": 90},
            RequestSize(100),
            "This API key may use 90 tokens a minute, and this request may take 100 for its "
            "prompt; shorten the prompt.",
            None,
        ),
        (
            {"concurrent_requests": 1},
            SIZE,
            "This API key may have 1 request open at once, and has so many; try again when one "
            "has ended.",
            1,
        ),
        (
            {"tokens_per_minute": 200},
            SIZE,
            "This API key may use 200 tokens a minute; 150 are used or reserved, and this request "
            "may take 150. Try again in 30 s.",
            30,
        ),
    ],
)
def test_a_refusal_says_what_to_do(
    limits: dict[str, int], size: RequestSize, message: str, retry_after_s: int | None
) -> None:
    world, who = World(), caller(Quota("k", "This API key", Limits(**limits)))
    if retry_after_s is not None:
        world.reserve(who)
    error = refusal(world, who, size)
    assert (error.message, error.retry_after_s) == (message, retry_after_s)
    assert error.is_final is (retry_after_s is None)


def test_headers_come_in_the_words_of_each_dialect() -> None:
    world = World()
    who = caller(key(requests_per_minute=60, tokens_per_minute=1200))
    assert world.limiter.reserve("a", who, SIZE, OPENAI) == (
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"1200"),
        (b"x-ratelimit-remaining-tokens", b"1050"),
        (b"x-ratelimit-reset-tokens", b"8s"),
    )
    assert world.limiter.reserve("b", who, SIZE, ANTHROPIC) == (
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"58"),
        (b"anthropic-ratelimit-requests-reset", b"2024-10-04T00:00:02Z"),
        (b"anthropic-ratelimit-tokens-limit", b"1200"),
        (b"anthropic-ratelimit-tokens-remaining", b"900"),
        (b"anthropic-ratelimit-tokens-reset", b"2024-10-04T00:00:15Z"),
    )


def test_a_forgotten_account_s_open_requests_end_without_it() -> None:
    world, who = World(), caller(key(tokens_per_day=1000))
    world.reserve(who)
    world.limiter.forget("k")
    world.limiter.close("r")
    assert world.used("k") == (0, 0, 0)
