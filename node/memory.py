"""The Mac's memory budget, leased in bytes to the engines.

Only the agent sizes anything from the machine; an engine gets a lease and stays within it.
"""

from node.errors import DoesNotFit
from node.store import ModelEntry

GIB = 1024**3
OVERHEAD_BYTES = GIB // 2
"""An engine process without weights: interpreter, MLX, compiled graphs, scratch of a step."""
KV_BYTES = 2 * GIB
"""Room for live KV that even a small model gets where its rows can fill it."""
ROW_TOKENS = 8192
"""Tokens for which each row gets room; longer contexts share the rest."""


def estimate_bytes(entry: ModelEntry, max_rows: int) -> int:
    """Memory that a load of `entry` is granted: the weights, room for the live KV, and the
    process's own overhead.

    The KV room is `max_rows` rows of up to 8,192 tokens, but no more than half the weights or
    2 GiB, whichever is more (rows are seldom all long at once), and no less than one such row.
    """
    row_bytes = entry.kv_bytes_per_token * min(entry.context_tokens or ROW_TOKENS, ROW_TOKENS)
    kv_bytes = max(row_bytes, min(row_bytes * max_rows, max(entry.weight_bytes // 2, KV_BYTES)))
    return entry.weight_bytes + kv_bytes + OVERHEAD_BYTES


class Budget:
    """A number of bytes and who holds how many of them."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._leases: dict[str, int] = {}

    @property
    def leased_bytes(self) -> int:
        return sum(self._leases.values())

    def lease(self, key: str, amount_bytes: int) -> None:
        """Grants `amount_bytes` to `key`, in place of what it held. Raises `DoesNotFit` and
        changes nothing if the rest of the budget is smaller."""
        free_bytes = self.total_bytes - self.leased_bytes + self._leases.get(key, 0)
        if amount_bytes > free_bytes:
            raise DoesNotFit(_refusal(key, amount_bytes, free_bytes, self.total_bytes))
        self._leases[key] = amount_bytes

    def release(self, key: str) -> None:
        """Takes back what `key` holds; nothing if it holds nothing."""
        self._leases.pop(key, None)


def _refusal(key: str, needed_bytes: int, free_bytes: int, total_bytes: int) -> str:
    if needed_bytes > total_bytes:
        advice = "Raise --memory-budget or choose a smaller model."
    else:
        advice = "Unload another model first, or raise --memory-budget."
    return (
        f"{key} needs {needed_bytes / GIB:.1f} GiB, but {max(free_bytes, 0) / GIB:.1f} GiB of the "
        f"memory budget of {total_bytes / GIB:.1f} GiB are free. {advice}"
    )
