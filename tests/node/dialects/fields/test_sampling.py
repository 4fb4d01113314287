"""Sampling fields mean the same in every dialect."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from node.dialects.fields.sampling import (
    SAMPLING_NOTES,
    SamplingFields,
    sampling_params,
    stop_strings,
    token_limit,
)
from node.errors import BadRequest
from node.ipc.generate import SamplingParams


def params(**fields: Any) -> SamplingParams:
    return sampling_params(SamplingFields.model_validate_json(json.dumps(fields)))


def test_absent_and_null_fields_take_the_defaults() -> None:
    assert params() == SamplingParams(temperature=1.0)
    assert params(**dict.fromkeys(SamplingFields.model_fields)) == SamplingParams()


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -3,
        "repetition_penalty": 1.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
    }
    bias = {"5": -100, "7": 1.5}
    expected = SamplingParams(**fields, logit_bias=((5, -100), (7, 1.5)))
    assert params(**fields, logit_bias=bias) == expected
    assert {*fields, "logit_bias"} == set(SamplingFields.model_fields) == set(SAMPLING_NOTES)


def test_a_top_p_of_0_is_passed_to_the_sampler_which_keeps_the_likeliest_token() -> None:
    assert params(top_p=0).top_p == 0


@pytest.mark.parametrize("top_k", [-1, 0, 2**31, 10**30])
def test_a_top_k_without_effect_means_no_limit(top_k: int) -> None:
    assert params(top_k=top_k).top_k == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": "1"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_k": -2},
        {"top_k": 1.5},
        {"min_p": -1},
        {"min_p": 2},
        {"seed": "x"},
        {"seed": 2**63},
        {"repetition_penalty": 0},
        {"repetition_penalty": 11},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1": 101}},
        {"logit_bias": [1]},
    ],
)
def test_values_out_of_range_are_not_valid(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        params(**fields)


@pytest.mark.parametrize(
    ("stop", "expected"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())]
)
def test_stops_are_a_string_or_a_list(stop: object, expected: tuple[str, ...]) -> None:
    assert stop_strings(stop, "stop") == expected
    assert len(stop_strings(["a"] * 16, "stop")) == 16


@pytest.mark.parametrize("stop", ["", 5, ["a", ""], ["a", 5], ["a"] * 17, {}])
def test_other_stops_are_refused_by_the_dialects_name(stop: object) -> None:
    with pytest.raises(BadRequest, match="^stop_sequences ") as caught:
        stop_strings(stop, "stop_sequences")
    assert caught.value.param == "stop_sequences"


def test_the_first_limit_counts_and_fits_31_bits() -> None:
    assert token_limit(None, 3) == 3
    assert token_limit(5, 3) == 5
    assert token_limit(10**30) == 2**31 - 1
    assert token_limit(None, None) is None
