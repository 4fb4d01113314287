"""A verdict on models of the hub by this machine's memory."""

from node.engines.memory_budget import OVERHEAD_BYTES
from node.engines.sizing import LEAST_LIVE_BYTES

TIGHT_SHARE = 0.85
"""Share of the memory for models from which on few long requests have room."""


def fits(weight_bytes: int | None, limit_bytes: int) -> str:
    """A verdict on a model with such weights: `yes`, `tight`, `no`, or `unknown`."""
    if weight_bytes is None:
        return "unknown"
    need_bytes = weight_bytes + OVERHEAD_BYTES + LEAST_LIVE_BYTES
    if need_bytes > limit_bytes:
        return "no"
    return "tight" if need_bytes > TIGHT_SHARE * limit_bytes else "yes"
