"""Leases of the memory budget."""

from pathlib import Path

import pytest

from node.errors import DoesNotFit
from node.memory import GIB, OVERHEAD_BYTES, Budget, estimate_bytes
from node.store import ModelEntry


def entry(weight_bytes: int, kv_bytes: int, context_tokens: int | None = 32_768) -> ModelEntry:
    return ModelEntry("m", Path("/m"), weight_bytes, context_tokens, kv_bytes)


def test_leases_until_the_budget_is_spent() -> None:
    budget = Budget(10 * GIB)
    budget.lease("a", 6 * GIB)
    with pytest.raises(DoesNotFit) as caught:
        budget.lease("b", 5 * GIB)
    assert caught.value.message == (
        "b needs 5.0 GiB, but 4.0 GiB of the memory budget of 10.0 GiB are free. "
        "Unload another model first, or raise --memory-budget."
    )
    assert budget.leased_bytes == 6 * GIB
    budget.release("a")
    budget.release("a")
    budget.lease("b", 5 * GIB)
    assert (budget.leased_bytes, budget.total_bytes) == (5 * GIB, 10 * GIB)


def test_a_second_lease_of_the_same_key_replaces_the_first() -> None:
    budget = Budget(10)
    budget.lease("a", 6)
    budget.lease("a", 8)
    assert budget.leased_bytes == 8
    with pytest.raises(DoesNotFit):
        budget.lease("a", 11)
    assert budget.leased_bytes == 8


def test_says_when_a_model_can_never_fit() -> None:
    with pytest.raises(DoesNotFit, match="choose a smaller model"):
        Budget(GIB).lease("a", 2 * GIB)


def test_estimates_rows_of_8192_tokens_up_to_half_the_weights_or_2_gib() -> None:
    row_bytes = 8192 * 1000
    assert estimate_bytes(entry(GIB, 1000), 2) == GIB + 2 * row_bytes + OVERHEAD_BYTES
    assert estimate_bytes(entry(GIB, 1000), 1000) == GIB + 2 * GIB + OVERHEAD_BYTES
    assert estimate_bytes(entry(8 * GIB, 1000), 1000) == 8 * GIB + 4 * GIB + OVERHEAD_BYTES
    assert estimate_bytes(entry(1000, 1000), 4) == 1000 + 4 * row_bytes + OVERHEAD_BYTES
    assert estimate_bytes(entry(1000, GIB), 4) == 1000 + 8192 * GIB + OVERHEAD_BYTES
    assert estimate_bytes(entry(1000, 10, 100), 1) == 1000 + 1000 + OVERHEAD_BYTES
    assert estimate_bytes(entry(1000, 0, None), 4) == 1000 + OVERHEAD_BYTES
