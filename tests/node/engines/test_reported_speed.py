"""Tests the report of an engine's speed to routers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engines.reported_speed import reported_speed
from node.ipc.learned_rates import DecodeRate, PrefillRate
from node.ipc.messages import EngineStats
from node.protocol.messages import ModelSpeed, ModelState, ModelStatus, decode_status, encode_status
from tests.router.conftest import node_status

ANY = st.floats(allow_nan=True) | st.sampled_from([0.0, -1.0, math.inf, 1e-300, 1e300])


def stats(
    prefill: tuple[PrefillRate, ...] = (), decode: tuple[DecodeRate, ...] = ()
) -> EngineStats:
    counts = (0,) * 13
    return EngineStats(*counts, prefill, decode)


def test_an_engine_that_has_learned_nothing_reports_nothing() -> None:
    assert reported_speed(stats()) is None


def test_the_step_of_the_fewest_rows_is_reported() -> None:
    decode = (DecodeRate(4, 0, 0.03), DecodeRate(1, 4096, 0.02), DecodeRate(1, 0, 0.01))
    speed = reported_speed(stats((PrefillRate(0, 500.0), PrefillRate(1024, 400.0)), decode))
    assert speed is not None
    assert [(each.depth_tokens, each.tokens_per_s) for each in speed.prefill] == [
        (0, 500.0),
        (1024, 400.0),
    ]
    assert (speed.step_s, speed.step_rows) == (0.01, 1)


@given(st.lists(ANY, max_size=40), st.lists(ANY, max_size=3))
def test_whatever_a_clock_reads_the_status_is_within_its_bounds(
    prefill: list[float], steps: list[float]
) -> None:
    rates = tuple(PrefillRate(1024 << i, each) for i, each in enumerate(prefill))
    decode = tuple(DecodeRate(1, 0, each) for each in steps)
    speed = reported_speed(stats(rates, decode))
    model = ModelStatus("m", ModelState.READY, weight_bytes=0, speed=speed)
    again = decode_status(encode_status(node_status(model)))
    assert again.models[0].speed == speed


@pytest.mark.parametrize(
    "speed",
    [
        b'{"prefill": [[0, 1e999]]}',
        b'{"prefill": [[0, 0]]}',
        b'{"prefill": [[-1, 5]]}',
        b'{"prefill": [[0, "fast"]]}',
        b'{"step_s": -1}',
        b'{"step_s": 0.1, "step_rows": 0}',
        b'{"prefill": [' + b",".join([b"[0, 5]"] * 33) + b"]}",
    ],
)
def test_what_exceeds_a_bound_is_not_decoded(speed: bytes) -> None:
    plain = encode_status(
        node_status(ModelStatus("m", ModelState.READY, weight_bytes=0, speed=ModelSpeed()))
    )
    assert b'"speed":{}' in plain
    with pytest.raises(ValueError):
        decode_status(plain.replace(b'"speed":{}', b'"speed":' + speed))
