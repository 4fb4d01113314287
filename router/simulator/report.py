"""The figures by which policies are compared."""

import math
from collections.abc import Sequence

import msgspec

from router.simulator.replay import ReplayResult


class PolicyFigures(msgspec.Struct, frozen=True):
    """One policy's row. Its fields are those of `router simulate --json`."""

    policy: str
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    longest_wait_s: float
    """Seconds from a request's arrival until a node began with it."""
    reprefilled_tokens: int
    """Prompt tokens that were computed although some node had computed them before."""
    cached_share: float
    """Cached share of all prompt tokens."""
    imbalance: float
    """Busy seconds of the busiest node over the mean of all; 1 if they are equal."""


def figures(policy: str, played: ReplayResult) -> PolicyFigures:
    ttfts_s = sorted(job.first_s - job.arrived_s for job in played.jobs)
    prompts = sum(job.call.prompt_tokens for job in played.jobs)
    cached = sum(job.cached_tokens for job in played.jobs)
    busy_s = sum(played.busy_s)
    return PolicyFigures(
        policy=policy,
        ttft_mean_s=round(sum(ttfts_s) / len(ttfts_s), 4),
        ttft_p50_s=round(_quantile(ttfts_s, 0.5), 4),
        ttft_p99_s=round(_quantile(ttfts_s, 0.99), 4),
        longest_wait_s=round(max(job.began_s - job.arrived_s for job in played.jobs), 4),
        reprefilled_tokens=played.reprefilled_tokens,
        cached_share=round(cached / prompts, 4),
        imbalance=round(max(played.busy_s) * len(played.busy_s) / busy_s if busy_s else 1.0, 3),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
