"""Tests the speed that is assumed of a node, and how requests correct it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node.protocol.messages import DepthSpeed, ModelSpeed
from router.scheduler.chip_bandwidth import bandwidth_bytes_per_s
from router.scheduler.rates import (
    DEPTH_BEGINS,
    DEPTH_SLOWNESS,
    MAX_GUESS_ERROR,
    SURE_SAMPLES,
    Mean,
    NodeRates,
    PrefillRate,
    Rates,
)
from router.types import Lease
from tests.router.conftest import model_status, node_status, node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, cached_model, usage_record


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
            rates.learn(lease, usage_record(lease, 1_000, prefill_s=took_s), rows=0)
    untried = rates.known("new", model)
    assert untried is not None
    return untried.prefill.seconds(0, 1_000) / guesses_s["new", model]


def test_an_untried_node_is_assumed_to_be_off_its_chip_as_the_model_s_other_nodes_are() -> None:
    assert learned_of_two_others("Apple M4") == pytest.approx(2.5, rel=0.01)


def test_unknown_chips_predict_nothing_of_others() -> None:
    assert learned_of_two_others("AMD EPYC 7B13") == 1.0
    assert learned_of_two_others("AMD EPYC 7B13", new="AMD EPYC 7B13") == 1.0
    assert learned_of_two_others("") == 1.0


def test_an_untried_foreign_server_is_assumed_to_be_like_the_others() -> None:
    assert learned_of_two_others("", new="") == pytest.approx(2.5, rel=0.01)


def test_one_model_s_speed_predicts_nothing_of_another_s() -> None:
    assert learned_of_two_others("Apple M4", model="x") == 1.0


def test_few_prefills_predict_nothing_of_other_nodes() -> None:
    rate = PrefillRate(0.001)
    for number in range(SURE_SAMPLES):
        assert rate.guess_error() is None, number
        rate.learn(0, 1_000, 2.0)
    assert rate.guess_error() == pytest.approx(1.0 + 1.0 - 1 / (SURE_SAMPLES + 1))


def reported(*tokens_per_s: float, step_s: float | None = None, rows: int = 1) -> ModelSpeed:
    prefill = tuple(
        DepthSpeed(depth, each) for depth, each in zip(DEPTH_BEGINS, tokens_per_s, strict=False)
    )
    return ModelSpeed(prefill, step_s, rows)


def rates_of(speed: ModelSpeed | None, weight_bytes: int = 6_120_000_000) -> NodeRates:
    model = model_status(weight_bytes=weight_bytes, speed=speed)
    return Rates().of(node_status(model), "id-a", model)


def test_a_node_s_reported_speed_is_used_from_the_first_request_on() -> None:
    # By the chip and the weights alone: 4 ms a token, 40 ms a step.
    rates = rates_of(reported(1_000, 500, step_s=0.022, rows=3))
    assert rates.prefill.seconds(0, 4_096) == pytest.approx(4.096)
    assert rates.prefill.seconds(5_000, 6_000) == pytest.approx(2.0)
    deeper = rates.prefill.seconds(70_000, 71_000)
    assert deeper == pytest.approx(2.0 * DEPTH_SLOWNESS[3] / DEPTH_SLOWNESS[1])
    assert rates.row_step_s.value == pytest.approx(0.02)


def test_the_speed_of_a_node_that_reports_none_is_estimated_from_its_chip() -> None:
    assert rates_of(None).prefill.seconds(0, 1_000) == rates_of(ModelSpeed()).prefill.seconds(
        0, 1_000
    )
    assert rates_of(None).prefill.seconds(0, 1_000) == pytest.approx(4.0)


@pytest.mark.parametrize("tokens_per_s", [1e-3, 1e7])
def test_a_reported_speed_is_clamped_and_requests_show_the_true_one(
    tokens_per_s: float,
) -> None:
    step_s = 1.0 / tokens_per_s
    rates = rates_of(reported(tokens_per_s, step_s=step_s))
    guess = rates_of(None)
    guessed_s = guess.prefill.seconds(0, 1_000)
    limit_s = guessed_s * MAX_GUESS_ERROR if tokens_per_s < 1 else guessed_s / MAX_GUESS_ERROR
    assert rates.prefill.seconds(0, 1_000) == pytest.approx(limit_s)
    assert rates.row_step_s.value in (
        pytest.approx(guess.row_step_s.value * MAX_GUESS_ERROR),
        pytest.approx(guess.row_step_s.value / MAX_GUESS_ERROR),
    )
    for _ in range(40):
        rates.learn_prefill(0, 1_000, 4.0)
        rates.learn_decode(4.0, 100, 0)
    assert rates.prefill.seconds(0, 1_000) == pytest.approx(4.0, rel=0.05)
    assert rates.row_step_s.value == pytest.approx(0.04, rel=0.05)


def test_a_speed_reported_later_counts_until_requests_have_shown_it() -> None:
    rates = Rates()
    model = model_status(weight_bytes=6_120_000_000)
    status = node_status(model)

    def seconds(speed: ModelSpeed | None) -> float:
        return rates.of(status, "id-a", replace(model, speed=speed)).prefill.seconds(0, 1_000)

    assert seconds(None) == pytest.approx(4.0)
    assert seconds(reported(1_000)) == pytest.approx(1.0)
    assert seconds(reported(2_000)) == pytest.approx(0.5)
    assert seconds(None) == pytest.approx(0.5)
    lease = Lease("t", "id-a", "m", 0.0, 1)
    rates.learn_prefill(lease, 0, 1_000, 0.5)
    assert seconds(reported(100)) == pytest.approx(0.5)
    # Its steps have not been seen yet.
    assert (
        rates.of(status, "id-a", replace(model, speed=reported(step_s=0.01))).row_step_s.value
        == 0.01
    )
    answered = replace(usage_record(lease, 0), completion_tokens=101, decode_s=1.0)
    rates.learn(lease, answered, 0)
    before_s = rates.of(status, "id-a", model).row_step_s.value
    assert (
        rates.of(status, "id-a", replace(model, speed=reported(step_s=0.5))).row_step_s.value
        == before_s
    )


def test_a_new_router_s_first_placement_goes_by_the_speeds_that_nodes_report() -> None:
    slow, fast = cached_model(speed=reported(200)), cached_model(speed=reported(2_000))
    assert Fleet(node_view("a", slow), node_view("b", fast)).chosen(a_ticket("r", 8_000)) == "b"
    assert Fleet(node_view("a", fast), node_view("b", slow)).chosen(a_ticket("r", 8_000)) == "a"
