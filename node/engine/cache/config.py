"""Settings of a prefix cache."""

from dataclasses import dataclass

from node.engine.cache.eviction import PrefillS
from node.engine.cache.promotion import RebuildSnapshot, RebuildSpan

EDGE_TOKENS = 8192
"""Longest edge: bounds the size of files and reads, and lets the end of a long prompt be evicted
alone."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Properties of the model and its lease."""

    budget_bytes: int
    """Maximum of spans and snapshots in memory."""
    snapshot_bytes: int
    """Maximum of snapshots within it; 0 means half."""
    needs_snapshot: bool
    """True if the model has layers that can be restored only at a snapshot."""
    span_bytes_per_token: int
    """0 if no layer can be split at any token."""
    rebuild_span: RebuildSpan
    rebuild_snapshot: RebuildSnapshot
    prefill_s: PrefillS
    edge_tokens: int = EDGE_TOKENS
