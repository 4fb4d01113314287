"""Speeds that an engine has measured and reports to the agent."""

import msgspec


class PrefillRate(msgspec.Struct, frozen=True, array_like=True):
    """Measured speed of prefill at a depth."""

    depth_tokens: int
    """Lower end of the depth class; its upper end is the next class's lower one."""
    tokens_per_s: float


class DecodeRate(msgspec.Struct, frozen=True, array_like=True):
    """Measured time of one decode step."""

    rows: int
    depth_tokens: int
    """Lower end of the depth class of the longest row."""
    step_s: float
