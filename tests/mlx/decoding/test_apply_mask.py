"""Logits of rows of which some are constrained."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from node.engine.decoding.apply_mask import constrain, masked
from node.engine.sampling.token_mask import Mask, all_but, only

SIZE = 70


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "constrained", [[True], [True, False, False], [False, True, True, False], [False, False, True]]
)
def test_only_constrained_rows_change(dtype: mx.Dtype, constrained: list[bool]) -> None:
    logits = mx.random.normal((len(constrained), SIZE), key=mx.random.key(1)).astype(dtype)
    masks = [
        all_but([place, 69], SIZE) if is_constrained else None
        for place, is_constrained in enumerate(constrained)
    ]
    out = masked(logits, masks)
    assert out.dtype == dtype
    expected = np.array(logits.astype(mx.float32))
    for place, is_constrained in enumerate(constrained):
        if is_constrained:
            expected[place, [place, 69]] = -np.inf
    assert np.array_equal(np.array(out.astype(mx.float32)), expected)


def test_without_a_mask_nothing_is_made() -> None:
    logits = mx.zeros((2, SIZE))
    assert masked(logits, [None, None]) is logits


def test_rows_provide_their_masks() -> None:
    class TokenConstraint:
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
        constraint: TokenConstraint | None

    out = constrain([Row(None), Row(TokenConstraint())], mx.zeros((2, SIZE)))
    assert mx.isfinite(out).sum(axis=1).tolist() == [SIZE, 1]
    assert mx.argmax(out, axis=1).tolist() == [0, 3]
