"""Projections of live KV against a lease."""

from node.engine.decoding.chunking import BatchShape
from node.engine.scheduling.memory_plan import MemoryPlan
from node.ipc.messages import MemoryLease


def plan(live_bytes: int = 1000, stored_bytes: int = 500) -> MemoryPlan:
    """One byte for each token, and 10,000 bytes of weights."""
    lease = MemoryLease(10_000, live_bytes, stored_bytes)
    return MemoryPlan(lease, live_bytes=lambda tokens: tokens, weight_bytes=10_000)


def test_a_sequence_alone_may_use_the_memory_of_stored_kv_too() -> None:
    assert plan().longest_tokens(4000) == 1500
    assert plan().longest_tokens(800) == 800
    assert plan().admits([], [], [1400])


def test_beside_others_sequences_keep_to_the_live_share() -> None:
    assert plan().admits([BatchShape((300,))], [300], [300])
    assert not plan().admits([BatchShape((300,))], [300], [500]), "three rows of 500"
    assert not plan().admits([], [600], [500])


def test_sequences_are_projected_as_padded_as_they_will_be() -> None:
    assert plan().projected_bytes([BatchShape((100, 200))], []) == 400
    assert plan().projected_bytes([BatchShape((100, 200))], [300]) == 900
    # Padded it would not fit: a batch of its own.
    assert plan().projected_bytes([BatchShape((100, 200))], [500]) == 900


def test_a_pass_over_the_weights_costs_as_much_as_so_much_kv() -> None:
    assert plan().pass_tokens == 10_000
    recurrent = MemoryPlan(MemoryLease(0, 0, 0), live_bytes=lambda tokens: 5000, weight_bytes=1)
    assert recurrent.pass_tokens > 1 << 30, "padding costs such a model nothing"


def test_stored_kv_gives_way_to_what_is_live_beyond_its_share() -> None:
    assert plan().stored_bytes(900) == 500
    assert plan().stored_bytes(1200) == 300
    assert plan().stored_bytes(9000) == 0


def test_without_a_lease_nothing_is_limited() -> None:
    unleased = MemoryPlan(MemoryLease(0, 0, 0), live_bytes=lambda tokens: tokens, weight_bytes=1)
    assert unleased.longest_tokens(1 << 20) == 1 << 20
    assert unleased.admits([BatchShape((1 << 30,))], [], [1 << 30])


def test_as_many_choices_decode_as_there_is_room_for_and_one_at_least() -> None:
    assert plan().fitting([], [], [500, 500, 500]) == 2
    assert plan().fitting([BatchShape((300,))], [300], [300, 300]) == 1
    assert plan().fitting([], [], [5000]) == 1
    assert plan().admits([], [], [500, 500, 500]), "a request alone may always go in"
    assert not plan().admits([], [300], [500, 500])
