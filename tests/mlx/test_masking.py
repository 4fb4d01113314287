"""Logits of rows of which some are held."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from node.engine.decoding.apply_mask import masked, steered
from node.engine.sampling.token_mask import Mask, all_but, only

SIZE = 70


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "held", [[True], [True, False, False], [False, True, True, False], [False, False, True]]
)
def test_only_held_rows_change(dtype: mx.Dtype, held: list[bool]) -> None:
    logits = mx.random.normal((len(held), SIZE), key=mx.random.key(1)).astype(dtype)
    masks = [all_but([place, 69], SIZE) if is_held else None for place, is_held in enumerate(held)]
    out = masked(logits, masks)
    assert out.dtype == dtype
    expected = np.array(logits.astype(mx.float32))
    for place, is_held in enumerate(held):
        if is_held:
            expected[place, [place, 69]] = -np.inf
    assert np.array_equal(np.array(out.astype(mx.float32)), expected)


def test_without_a_mask_nothing_is_made() -> None:
    logits = mx.zeros((2, SIZE))
    assert masked(logits, [None, None]) is logits


def test_rows_tell_what_they_are_held_to() -> None:
    class Steer:
        error: str | None = None
        is_refused: bool = False

        @property
        def is_forced(self) -> bool:
            return False

        def advance(self, token: int) -> None:
            raise AssertionError

        def next(self) -> Mask | None:
            return only([3], SIZE)

    @dataclass
    class Row:
        steer: Steer | None

    out = steered([Row(None), Row(Steer())], mx.zeros((2, SIZE)))
    assert mx.isfinite(out).sum(axis=1).tolist() == [SIZE, 1]
    assert mx.argmax(out, axis=1).tolist() == [0, 3]
