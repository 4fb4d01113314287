"""How fast an engine has found itself to be, as it tells the agent."""

import msgspec


class PrefillRate(msgspec.Struct, frozen=True, array_like=True):
    """Learned speed of prefill at a depth."""

    depth_tokens: int
    """Lower end of the class; its upper end is the next class's lower one."""
    tokens_per_s: float


class DecodeRate(msgspec.Struct, frozen=True, array_like=True):
    """Learned time of one decode step."""

    rows: int
    depth_tokens: int
    """Of the longest row; lower end of the class."""
    step_s: float
