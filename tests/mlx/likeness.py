"""On which device the tests of MLX run, and what "the same answer" means there.

`MLX_FLEET_TEST_DEVICE` is `cpu`, as it is where nothing is said, or `gpu`. On MLX's CPU backend
what runs beside a row moves its logits by less than a millionth of their spread, so answers are the
same token for token. A GPU picks its kernels by shape, and rounds otherwise in another batch, chunk
or cache: there an answer may part from another where two tokens were as good as each other, and
nowhere else.
"""

import os
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

VARIABLE = "MLX_FLEET_TEST_DEVICE"
DEVICE = os.environ.get(VARIABLE, "cpu")
NEAR = 0.02
"""How far logits may differ, relative to their spread, and probabilities."""

Logits = NDArray[Any]


def use_device() -> None:
    """Runs MLX on the device that is asked for. Raises `ValueError` where there is none such."""
    devices: dict[str, Any] = {"cpu": mx.cpu, "gpu": mx.gpu}
    if DEVICE not in devices:
        raise ValueError(f"{VARIABLE} is {DEVICE!r}: it is cpu or gpu.")
    if not mx.is_available(devices[DEVICE]):
        raise ValueError(f"{VARIABLE} is gpu, and MLX has none here.")
    mx.set_default_device(devices[DEVICE])


def is_exact() -> bool:
    """Whether answers are to be the same token for token."""
    return DEVICE == "cpu"


def greedy_gap(logits: Logits, tokens: Sequence[int]) -> float:
    """How far the worst of the tokens is from the likeliest one; `logits` [n, V] are those that
    each was picked from."""
    chosen = logits[np.arange(len(tokens)), list(tokens)]
    gaps: Logits = (logits.max(axis=1) - chosen) / logits.std(axis=1)
    return float(gaps.max())


def draw_gap(logits: Logits, left: int, right: int, temperature: float) -> float:
    """How far a draw from these logits [V] must move to give one token in place of the other."""
    weights = np.exp((logits - logits.max()) / temperature)
    summed = np.cumsum(weights / weights.sum())
    low, high = min(left, right), max(left, right)
    return float(summed[high - 1] - summed[low])
