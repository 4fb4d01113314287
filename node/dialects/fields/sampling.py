"""Fields for sampling and for the end of a response, as the dialects share them."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from node.dialects.fields.field_table import MAX_INT, Lenient
from node.errors import BadRequest
from node.ipc.generate import SamplingParams

MAX_STOPS = 16

Count = Annotated[int, Field(ge=1)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Addend = Annotated[float, Field(ge=-100, le=100)]
_TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]


class SamplingFields(Lenient):
    """Sampling options; null means the default. A dialect overrides fields that have other bounds
    there."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[_TokenId, _Addend] | None = None


SAMPLING_NOTES: Mapping[str, str] = {
    "temperature": "0 to 2; 0 is greedy. Default 1.",
    "top_p": "0 to 1; 0 keeps the likeliest token only. Default 1.",
    "top_k": "-1 and 0 mean no limit. Default 0.",
    "min_p": "0 to 1. Default 0.",
    "seed": (
        "A 64-bit integer. The same seed gives the same draws: with the same prompt and settings "
        "the same response, except for near ties on a GPU."
    ),
    "repetition_penalty": "Above 0, to 10, over prompt and response. Default 1.",
    "presence_penalty": "-2 to 2, applied once to each token that the response already has.",
    "frequency_penalty": (
        "-2 to 2, multiplied by the number of times that the response has the token."
    ),
    "logit_bias": "An object of token id to a number from -100 to 100.",
}
"""Notes for a dialect's `FieldTable`, by field of `SamplingFields`."""


def sampling_params(fields: SamplingFields) -> SamplingParams:
    """Returns the validated fields, with defaults in place of null."""
    default = SamplingParams()
    top_k = fields.top_k or 0
    penalty = fields.repetition_penalty
    return SamplingParams(
        temperature=default.temperature if fields.temperature is None else fields.temperature,
        top_p=default.top_p if fields.top_p is None else fields.top_p,
        top_k=top_k if 0 < top_k <= MAX_INT else 0,
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        repetition_penalty=default.repetition_penalty if penalty is None else penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=tuple((fields.logit_bias or {}).items()),
    )


def stop_strings(value: object, field: str) -> tuple[str, ...]:
    """Returns the stop strings of `field`: null, a string, or a list of at most `MAX_STOPS`
    strings, none empty. Raises `BadRequest`."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest(f"{field} must be a string or a list of strings, none empty.", param=field)
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"{field} has more than {MAX_STOPS} strings.", param=field)
    return tuple(stops)


def token_limit(*limits: int | None) -> int | None:
    """Returns the first limit that is set, in tokens, clamped to 31 bits; None if there is none."""
    given = next((limit for limit in limits if limit is not None), None)
    return None if given is None else min(given, MAX_INT)
