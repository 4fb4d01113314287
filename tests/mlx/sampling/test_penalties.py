"""Penalties against their definitions in numpy."""

import mlx.core as mx
import numpy as np
import pytest

from node.engine.sampling.penalties import Penalties, needs_penalties
from node.ipc.generate import SamplingParams
from tests.fakes import processor_time
from tests.mlx.likeness import penalized

pytestmark = pytest.mark.mlx

VOCAB_SIZE = 20
PROMPT = (3, 4, 4, 5)
OUTPUT = (7, 4, 7, 9)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(presence_penalty=0.7),
        SamplingParams(frequency_penalty=-0.4),
        SamplingParams(logit_bias=((3, -100.0), (19, 2.5))),
        SamplingParams(
            repetition_penalty=0.8,
            presence_penalty=1.0,
            frequency_penalty=0.5,
            logit_bias=((7, 1.0),),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("generated", [0, 2])
def test_equals_the_definition_at_every_step(
    params: SamplingParams, dtype: mx.Dtype, generated: int
) -> None:
    assert needs_penalties(params)
    random = np.random.default_rng(0)
    penalties = Penalties(params, PROMPT, OUTPUT[:generated], VOCAB_SIZE)
    for length in range(generated, len(OUTPUT) + 1):
        if length > generated:
            penalties.count(mx.array(OUTPUT[length - 1]))
        logits = mx.array(random.normal(size=(1, VOCAB_SIZE)).astype(np.float32)).astype(dtype)
        out = penalties.apply(logits)
        assert (out.shape, out.dtype) == (logits.shape, dtype)
        raw = np.array(logits.astype(mx.float32))[0]
        wanted = penalized(params, raw, PROMPT, OUTPUT[:length])
        tolerance = 1e-5 if dtype == mx.float32 else 0.02
        got = np.array(out.astype(mx.float32))[0]
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_a_row_without_penalties_needs_no_processor() -> None:
    assert not needs_penalties(SamplingParams(temperature=0.3, top_p=0.5, seed=1))


def test_a_large_bias_is_one_array() -> None:
    entries = tuple((token, token / 1000.0) for token in range(40_000))
    # One operation for each entry takes tens of seconds.
    with processor_time(10):
        penalties = Penalties(SamplingParams(logit_bias=(*entries, (1, 1.0))), PROMPT, (), 50_000)
        out = penalties.apply(mx.zeros((1, 50_000)))
        mx.eval(out)
    wanted = np.array([addend for _, addend in entries] + [0.0] * 10_000, dtype=np.float32)
    wanted[1] += 1.0
    np.testing.assert_allclose(np.array(out)[0], wanted, rtol=1e-6)
