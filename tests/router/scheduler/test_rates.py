"""What is taken for a node's speed, and what requests teach of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.scheduler.chips import bandwidth_bytes_per_s
from router.scheduler.rates import (
    DEPTH_BEGINS,
    DEPTH_SLOWNESS,
    TELLING_SAMPLES,
    Mean,
    PrefillRate,
    Rates,
)
from router.types import Lease
from tests.router.conftest import model_status, node_status
from tests.router.scheduler.fleet import accounts


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


def learned_of_two_others(chip: str, model: str = "m", new: str = "Apple M4 Max") -> float:
    """Seconds that 1,000 tokens are taken to need on an untried node, against its guess, where the
    nodes a and b are three times and twice as slow at "m" as their chips say."""
    rates, guesses_s = Rates(), {}
    for node_id, own_chip in (("a", chip), ("b", chip), ("new", new)):
        status = replace(node_status(node_id=node_id), chip=own_chip)
        for name in ("m", "x"):
            known = rates.of(status, node_id, model_status(name))
            guesses_s[node_id, name] = known.prefill.seconds(0, 1_000)
    for node_id, slowness in (("a", 3.0), ("b", 2.0)):
        lease = Lease(f"t{node_id}", node_id, "m", granted_s=0.0, attempt=1)
        took_s = slowness * guesses_s[node_id, "m"]
        for _ in range(60):
            rates.learn(lease, accounts(lease, 1_000, prefill_s=took_s), rows=0)
    untried = rates.known("new", model)
    assert untried is not None
    return untried.prefill.seconds(0, 1_000) / guesses_s["new", model]


def test_an_untried_node_is_taken_to_be_off_its_chip_as_the_model_s_other_nodes_are() -> None:
    assert learned_of_two_others("Apple M4") == pytest.approx(2.5, rel=0.01)


def test_chips_of_which_nothing_is_known_tell_nothing_of_others() -> None:
    assert learned_of_two_others("AMD EPYC 7B13") == 1.0
    assert learned_of_two_others("AMD EPYC 7B13", new="AMD EPYC 7B13") == 1.0
    assert learned_of_two_others("") == 1.0


def test_an_untried_foreign_server_is_taken_to_be_like_the_others() -> None:
    assert learned_of_two_others("", new="") == pytest.approx(2.5, rel=0.01)


def test_one_model_s_speed_tells_nothing_of_another_s() -> None:
    assert learned_of_two_others("Apple M4", model="x") == 1.0


def test_few_prefills_tell_nothing_of_other_nodes() -> None:
    rate = PrefillRate(0.001)
    for number in range(TELLING_SAMPLES):
        assert rate.off_by() is None, number
        rate.learn(0, 1_000, 2.0)
    assert rate.off_by() == pytest.approx(1.0 + 1.0 - 1 / (TELLING_SAMPLES + 1))
