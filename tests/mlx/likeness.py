"""On which device the tests of MLX run, and what "the same answer" means there.

`MLX_FLEET_TEST_DEVICE` is `cpu`, the default, `gpu` or `played-gpu`. On MLX's
CPU backend what runs beside a row moves its logits by less than a millionth of their spread, so
answers are the same token for token. A GPU picks its kernels by shape, and rounds otherwise in
another batch, chunk or cache: there an answer may part from another where two tokens were as good
as each other, and nowhere else. A played GPU is the CPU whose layers err with the shape of what
they are given, so that a test that demands more than a GPU can do is found where there is none.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from node.ipc.generate import SamplingParams

VARIABLE = "MLX_FLEET_TEST_DEVICE"
DEVICE = os.environ.get(VARIABLE, "cpu")
NEAR = 0.02
"""Largest difference of logits, relative to their spread, and of probabilities."""
NEAR_QUANTISED = 1.0
"""Largest difference with quantized KV: a value at the edge of two steps falls to either."""
NEAR_LOGPROB = 1e-3 if DEVICE == "cpu" else 0.02
"""Largest difference of log probabilities."""
PLAYED_ERROR = 1e-5
"""Relative error of each output of a layer of a simulated GPU: tenfold that of another order of
sums. Much more changes choices of experts, and of what an index selects, in models of random
weights."""

Logits = NDArray[Any]


def use_device() -> None:
    """Runs MLX on the configured device. Raises `ValueError` where there is none such."""
    devices: dict[str, Any] = {"cpu": mx.cpu, "gpu": mx.gpu, "played-gpu": mx.cpu}
    if DEVICE not in devices:
        raise ValueError(f"{VARIABLE} is {DEVICE!r}: it is one of {', '.join(devices)}.")
    if not mx.is_available(devices[DEVICE]):
        raise ValueError(f"{VARIABLE} is gpu, and MLX has none here.")
    # Else the matrix units of an M5 multiply float32 with 11 bits. MLX reads it once.
    os.environ["MLX_ENABLE_TF32"] = "0"
    mx.set_default_device(devices[DEVICE])
    if DEVICE == "played-gpu":
        layers: Any = nn
        _err_with_shapes(layers.Linear)
        _err_with_shapes(layers.QuantizedLinear)


def _err_with_shapes(layer: Any) -> None:
    exact = layer.__call__

    def err(self: Any, x: mx.array) -> mx.array:
        y: mx.array = exact(self, x)
        key = mx.random.key(x.shape[0] * 100_003 + x.shape[-2])
        return y * (1 + PLAYED_ERROR * mx.random.normal(y.shape[-1:], key=key)).astype(y.dtype)

    layer.__call__ = err


def is_exact() -> bool:
    """Returns True if answers must be the same token for token."""
    return DEVICE == "cpu"


def assert_alike(
    left: Sequence[int],
    right: Sequence[int],
    logits_at: Callable[[int], Logits],
    gap: Callable[[Logits, int, int], float],
    near: float = NEAR,
) -> None:
    """That two answers are the same; on a GPU, up to where two tokens were as good as each other by
    `gap`. `logits_at` gives those [V] that the token at a place of `left` was picked from."""
    if is_exact() or left == right:
        assert left == right
        return
    parted = [at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other]
    assert parted, "one answer is the beginning of the other"
    at = parted[0]
    assert gap(logits_at(at), left[at], right[at]) <= near


def pair_gap(logits: Logits, left: int, right: int) -> float:
    """Returns the distance of two tokens' logits, whatever others were allowed."""
    return float(abs(logits[left] - logits[right]) / logits.std())


def tie_gap(logits: Logits, left: int, right: int) -> float:
    """Returns the distance of the worse of two tokens from the likeliest one."""
    return greedy_gap(np.stack([logits, logits]), [left, right])


def penalized(
    params: SamplingParams, logits: Logits, prompt: Sequence[int], output: Sequence[int]
) -> Logits:
    """Logits [V] after the request's penalties and biases, by their definition."""
    out = logits.copy()
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
    for token in set(output):
        out[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, addend in params.logit_bias:
        out[token] += addend
    return out


def greedy_gap(logits: Logits, tokens: Sequence[int]) -> float:
    """Returns the distance of the worst of the tokens from the likeliest one; `logits` [n, V] are
    those that each was picked from."""
    chosen = logits[np.arange(len(tokens)), list(tokens)]
    gaps: Logits = (logits.max(axis=1) - chosen) / logits.std(axis=1)
    return float(gaps.max())


def draw_gap(logits: Logits, left: int, right: int, temperature: float) -> float:
    """Returns the distance that a draw from these logits [V] must move to give one token in place
    of the other."""
    weights = np.exp((logits - logits.max()) / temperature)
    summed = np.cumsum(weights / weights.sum())
    low, high = min(left, right), max(left, right)
    return float(summed[high - 1] - summed[low])
