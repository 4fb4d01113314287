import pytest

from node.engine.cache.value import RECENCY_S, recency, value_per_byte, worth_reading


def test_recency_is_half_after_the_recency_time_and_never_grows() -> None:
    assert recency(0.0) == 1.0
    assert recency(RECENCY_S) == pytest.approx(0.5)
    assert recency(10 * RECENCY_S) < recency(RECENCY_S)


def test_a_use_in_the_future_counts_as_now() -> None:
    assert recency(-5.0) == 1.0


def test_value_is_seconds_times_recency_per_byte() -> None:
    assert value_per_byte(4.0, 0.0, 100) == pytest.approx(0.04)
    assert value_per_byte(4.0, RECENCY_S, 100) == pytest.approx(0.02)


def test_what_uses_no_memory_has_a_value_too() -> None:
    assert value_per_byte(4.0, 0.0, 0) == pytest.approx(4.0)


def test_reading_is_worth_it_where_it_is_quicker_than_prefill() -> None:
    assert worth_reading(recompute_s=2.0, nbytes=1_000, read_bytes_per_s=1_000.0)
    assert not worth_reading(recompute_s=0.5, nbytes=1_000, read_bytes_per_s=1_000.0)
