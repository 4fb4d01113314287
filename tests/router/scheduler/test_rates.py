"""What is taken for a node's speed, and what requests teach of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduler.chips import bandwidth_bytes_per_s
from router.scheduler.rates import DEPTH_BEGINS, DEPTH_SLOWNESS, Mean, PrefillRate


@pytest.mark.parametrize(
    ("chip", "gb_per_s"),
    [
        ("Apple M1", 68),
        ("Apple M4 Pro", 273),
        ("Apple M3 Ultra", 819),
        ("Apple M9 Max", 546),
        ("Apple M9", 153),
        ("AMD EPYC 7B13", 100),
        ("", 100),
    ],
)
def test_a_chip_s_bandwidth_is_known_by_its_name(chip: str, gb_per_s: float) -> None:
    assert bandwidth_bytes_per_s(chip) == gb_per_s * 1e9


def test_a_prior_counts_as_one_sample() -> None:
    mean = Mean(10.0)
    mean.learn(20.0)
    assert mean.value == 15.0
    for _ in range(50):
        mean.learn(20.0)
    assert mean.value == pytest.approx(20.0, rel=1e-3)


def test_deeper_tokens_take_longer() -> None:
    rate = PrefillRate(0.001)
    assert rate.seconds(0, 4_096) == pytest.approx(4.096)
    whole_s = rate.seconds(0, 100_000)
    parts_s = sum(
        rate.seconds(begin, end)
        for begin, end in ((0, 4_096), (4_096, 16_384), (16_384, 65_536), (65_536, 100_000))
    )
    assert whole_s == pytest.approx(parts_s)
    assert rate.seconds(90_000, 91_000) == pytest.approx(DEPTH_SLOWNESS[-1])
    assert rate.seconds(5, 5) == 0.0


def test_what_one_depth_teaches_is_believed_of_those_not_seen_yet() -> None:
    rate = PrefillRate(0.001)
    for _ in range(50):
        rate.learn(0, 4_000, 8.0)
    assert rate.seconds(0, 4_000) == pytest.approx(8.0, rel=0.01)
    assert rate.seconds(20_000, 21_000) == pytest.approx(2 * DEPTH_SLOWNESS[2], rel=0.01)


def test_few_tokens_teach_nothing() -> None:
    rate = PrefillRate(0.001)
    rate.learn(0, 63, 100.0)
    rate.learn(0, 100, 0.0)
    assert rate.seconds(0, 1_000) == pytest.approx(1.0)


@given(st.integers(0, 3), st.floats(0.2, 5.0), st.integers(64, 60_000))
def test_repeated_samples_of_a_span_are_learned(depth: int, factor: float, tokens: int) -> None:
    rate = PrefillRate(0.001)
    begin = DEPTH_BEGINS[depth]
    truth_s = factor * rate.seconds(begin, begin + tokens)
    for _ in range(200):
        rate.learn(begin, begin + tokens, truth_s)
    assert rate.seconds(begin, begin + tokens) == pytest.approx(truth_s, rel=0.02)
