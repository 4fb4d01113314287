"""The speed of a model's engine, as routers receive it."""

import math
from collections.abc import Iterable

from node.ipc.learned_rates import DecodeRate, PrefillRate
from node.ipc.messages import EngineStats
from node.protocol.bounds import LEAST_RATE, MAX_DEPTHS, MOST_RATE
from node.protocol.messages import DepthSpeed, ModelSpeed


def reported_speed(stats: EngineStats) -> ModelSpeed | None:
    """Returns None until the engine has measured something. Values outside the protocol's bounds,
    which a faulty clock may produce, are left out."""
    prefill = tuple(
        DepthSpeed(rate.depth_tokens, rate.tokens_per_s) for rate in _sound(stats.prefill_rates)
    )
    step = _fewest_rows(stats.decode_rates)
    if not prefill and step is None:
        return None
    if step is None:
        return ModelSpeed(prefill[:MAX_DEPTHS])
    return ModelSpeed(prefill[:MAX_DEPTHS], step.step_s, step.rows)


def _sound(rates: Iterable[PrefillRate]) -> Iterable[PrefillRate]:
    return (rate for rate in rates if _is_rate(rate.tokens_per_s))


def _fewest_rows(rates: Iterable[DecodeRate]) -> DecodeRate | None:
    """Returns the rate with the fewest rows, and among those with the smallest depth."""
    sound = (rate for rate in rates if rate.step_s > 0.0 and _is_rate(1.0 / rate.step_s))
    return min(sound, key=lambda rate: (rate.rows, rate.depth_tokens), default=None)


def _is_rate(each_s: float) -> bool:
    return math.isfinite(each_s) and LEAST_RATE <= each_s <= MOST_RATE
