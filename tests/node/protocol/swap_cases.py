"""The table of cases of the swap rule, which the agent's and the router's tests both run."""

from typing import NamedTuple

from node.protocol.swap_rule import ResidentModel

TOTAL_BYTES = 10
MIN_RESIDENCY_S, MAX_SWAP_WAIT_S = 30.0, 120.0
NOW_S = 1_000.0


class SwapCase(NamedTuple):
    """A model of `needed_bytes` is waited for since `waited_s` seconds on a node of
    `TOTAL_BYTES`."""

    name: str
    residents: tuple[ResidentModel, ...]
    needed_bytes: int
    waited_s: float
    unload: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


def resident(
    name: str,
    memory_bytes: int,
    *,
    leases: int = 0,
    loaded_for_s: float = 500.0,
    cost_s: float = 10.0,
    pinned: bool = False,
) -> ResidentModel:
    evictable_s = NOW_S - loaded_for_s + MIN_RESIDENCY_S
    return ResidentModel(name, memory_bytes, leases, evictable_s, cost_s, pinned)


CASES = (
    SwapCase("what fits displaces nothing", (resident("a", 4),), 6, 500.0),
    SwapCase("an idle model leaves at once", (resident("a", 6),), 6, 0.0, unload=("a",)),
    SwapCase(
        "a model within its minimum residency stays",
        (resident("a", 6, loaded_for_s=10.0),),
        6,
        500.0,
    ),
    SwapCase("a model in use serves on", (resident("a", 6, leases=1),), 6, 100.0),
    SwapCase(
        "a model in use is closed once the oldest request has waited too long",
        (resident("a", 6, leases=1),),
        6,
        MAX_SWAP_WAIT_S,
        closed=("a",),
    ),
    SwapCase(
        "a model in use within its minimum residency is not closed",
        (resident("a", 6, leases=1, loaded_for_s=10.0),),
        6,
        500.0,
    ),
    SwapCase(
        "an idle model leaves though one in use costs less",
        (resident("a", 5, leases=1, cost_s=0.0), resident("b", 5)),
        5,
        500.0,
        unload=("b",),
    ),
    SwapCase(
        "of idle models the one with the least cost per byte leaves",
        (resident("a", 4, cost_s=8.0), resident("b", 6, cost_s=6.0)),
        3,
        0.0,
        unload=("b",),
    ),
    SwapCase(
        "a model that is not needed once a larger one leaves stays",
        (resident("a", 4, cost_s=1.0), resident("b", 6, cost_s=6.0)),
        6,
        0.0,
        unload=("b",),
    ),
    SwapCase(
        "of models in use the one with the least cost per byte is closed",
        (resident("a", 5, leases=1, cost_s=50.0), resident("b", 5, leases=9, cost_s=5.0)),
        5,
        500.0,
        closed=("b",),
    ),
    SwapCase(
        "where idle models do not suffice only those whose residency is over are closed",
        (resident("a", 5, leases=1), resident("b", 5, loaded_for_s=10.0)),
        10,
        500.0,
        closed=("a",),
    ),
    SwapCase(
        "a pinned model stays",
        (resident("a", 5, pinned=True, cost_s=0.0), resident("b", 5, cost_s=99.0)),
        5,
        500.0,
        unload=("b",),
    ),
)
