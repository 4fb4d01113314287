"""Compares several policies on one trace and one fleet."""

from collections.abc import Iterable, Sequence

from router.simulator.fleet import NodeSpec
from router.simulator.oracle import Oracle
from router.simulator.policies import BASELINES, MakePolicy, baseline
from router.simulator.replay import play
from router.simulator.report import PolicyFigures, figures
from router.simulator.shipped_scheduler import ShippedScheduler
from router.simulator.workload import Workload

OURS = "ours"
BOUND = "oracle"
"""The bound for any policy: it knows what no router can know."""
POLICIES: dict[str, MakePolicy] = {
    OURS: ShippedScheduler,
    **{name: baseline(name) for name in BASELINES},
    BOUND: Oracle,
}


def compare(
    names: Iterable[str], workload: Workload, specs: Sequence[NodeSpec], seed: int
) -> list[PolicyFigures]:
    return [figures(name, play(workload, specs, POLICIES[name], seed)) for name in names]
