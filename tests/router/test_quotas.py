from __future__ import annotations

from router.quotas import Limits, read_limits


def test_limits_are_stored_by_name_without_those_that_are_not_set() -> None:
    limits = Limits(requests_per_minute=3, concurrent_requests=1)
    assert limits.stored() == {"requests_per_minute": 3, "concurrent_requests": 1}
    assert read_limits(limits.stored()) == limits
    assert Limits().stored() == {}


def test_a_limit_of_a_later_version_is_left_out() -> None:
    assert read_limits({"requests_per_year": 1, "tokens_per_day": 2}) == Limits(tokens_per_day=2)
