"""The Grafana dashboard asks for metrics that router and agents have, by labels that these have."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.agent.metrics import NodeMetrics
from tests.doc_tables import DOCS
from tests.router.conftest import running_router

DASHBOARD = json.loads((DOCS / "grafana/mlx-fleet.json").read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [
    each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"
]
METRIC = re.compile(r"\bmlx_fleet_\w+")
HISTOGRAM = ("bucket", "count", "sum")
SELECTORS = re.compile(r"(mlx_fleet_\w+)\{([^}]*)\}")
SUMS = re.compile(r"by \(([^)]*)\) \(")


def names_in(text: bytes) -> set[str]:
    """The names of all series in a page of metrics."""
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text.decode(), re.MULTILINE):
        names |= {name} if kind != "histogram" else {f"{name}_{end}" for end in HISTOGRAM}
    return names


def documented_labels() -> dict[str, set[str]]:
    text = (DOCS / "reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(mlx_fleet_\w+)` \|([^|]*)\|", text, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


async def test_every_metric_of_the_dashboard_exists(tmp_path: Path) -> None:
    budget = SimpleNamespace(total_bytes=1, leased_bytes=0, stored_bytes=0)
    idle = SimpleNamespace(budget=budget, pressure=0, status=list, engines=dict)
    known = names_in(NodeMetrics(cast(Any, idle)).text())
    async with running_router(tmp_path) as router:
        router.core.metrics.add_callers(cast(Any, SimpleNamespace(refused=0, cut_off=0)))
        known |= names_in(router.core.metrics.text())
    used = {name for query in QUERIES for name in METRIC.findall(query)}
    assert used - known == set()
    assert len(used) > 30


LABELS = documented_labels()


def labels_of(name: str) -> set[str]:
    """The labels of a series: those that are documented, and of agents that of the scrape
    (docs/reference/metrics.md)."""
    found = LABELS[name] if name in LABELS else LABELS[name.rpartition("_")[0]] | {"le"}
    return found | {"node"} if name.startswith("mlx_fleet_node_") else found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_labels_of_its_metrics(query: str) -> None:
    for name, selected in SELECTORS.findall(query):
        assert set(re.findall(r"(\w+)=", selected)) <= labels_of(name)
    for grouped in SUMS.findall(query):
        everywhere = set.intersection(*map(labels_of, METRIC.findall(query)))
        assert set(grouped.replace(" ", "").split(",")) <= everywhere


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [each["id"] for each in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in combinations((each["gridPos"] for each in DASHBOARD["panels"]), 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert one["x"] + one["w"] <= 24
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
