"""Tests the measured costs of steps, by class."""

import pytest

from node.engine.decoding.rates import Rates, class_begin_tokens, depth_class


@pytest.mark.parametrize(
    ("tokens", "number"), [(0, 0), (1023, 0), (1024, 1), (2047, 1), (2048, 2), (60_000, 6)]
)
def test_a_class_of_depth_ends_where_the_next_one_begins(tokens: int, number: int) -> None:
    assert depth_class(tokens) == number
    assert class_begin_tokens(number) <= tokens < class_begin_tokens(number + 1)


def test_before_anything_is_known_there_is_a_prior() -> None:
    rates = Rates()
    assert not rates.knows_prefill
    assert rates.prefill_s(0, 1000) == pytest.approx(1.0)
    assert rates.prefill_rates() == ()


def test_the_first_measurement_counts_whole_and_later_ones_for_a_share() -> None:
    rates = Rates()
    rates.learn_prefill(0, 512, 0.512)
    assert rates.prefill_s_per_token(0) == pytest.approx(1e-3)
    rates.learn_prefill(0, 512, 1.024)
    assert rates.prefill_s_per_token(0) == pytest.approx(1.3e-3)


def test_a_short_chunk_counts_for_less() -> None:
    rates = Rates()
    rates.learn_prefill(0, 512, 0.512)
    rates.learn_prefill(0, 64, 1.6)
    # 0.3 * 64 / 256 of the way from 1 ms to 25 ms a token.
    assert rates.prefill_s_per_token(0) == pytest.approx(1e-3 + 0.3 * 64 / 256 * 24e-3)
    rates.learn_prefill(60_000, 20, 1.0)
    assert len(rates.prefill_rates()) == 1, "a pass for 20 tokens reveals nothing of their cost"


def test_a_prefill_is_rated_by_the_classes_on_its_way() -> None:
    rates = Rates()
    rates.learn_prefill(0, 1000, 1.0)
    rates.learn_prefill(1024, 1000, 2.0)
    assert rates.prefill_s(1000, 1100) == pytest.approx(24 * 1e-3 + 76 * 2e-3)
    assert rates.prefill_s(5, 5) == 0


def test_an_unknown_class_borrows_from_the_nearest_one() -> None:
    rates = Rates()
    rates.learn_prefill(2048, 1000, 2.0)
    rates.learn_prefill(30_000, 1000, 8.0)
    assert rates.prefill_s_per_token(0) == pytest.approx(2e-3)
    assert rates.prefill_s_per_token(17_000) == pytest.approx(8e-3)


def test_nothing_is_learned_from_nothing() -> None:
    rates = Rates()
    rates.learn_prefill(0, 0, 1.0)
    rates.learn_decode(0, 10, 1.0)
    assert (rates.prefill_rates(), rates.decode_rates()) == ((), ())


def test_rates_are_reported_by_class() -> None:
    rates = Rates()
    rates.learn_prefill(5000, 1000, 0.5)
    rates.learn_decode(3, 100, 0.01)
    (prefill,), (decode,) = rates.prefill_rates(), rates.decode_rates()
    assert prefill.depth_tokens == 4096
    assert prefill.tokens_per_s == pytest.approx(2000)
    assert (decode.rows, decode.depth_tokens, decode.step_s) == (2, 0, 0.01)
