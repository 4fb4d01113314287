"""Rows of nodes, for tests of what commands print."""

from typing import Any

from router.api.admin.views import NodeModel, NodeRow

GIB = 1024**3


def node_row(name: str, **changes: Any) -> NodeRow:
    """An agent that can be reached, with one loaded model; `changes` are its other fields."""
    values: dict[str, Any] = {
        "id": f"id-{name}",
        "name": name,
        "url": "http://127.0.0.1:8801",
        "kind": "agent",
        "created_at_s": 0.0,
        "reachable": True,
        "error": None,
        "status_age_s": 1.0,
        "version": "1",
        "engine": "text",
        "chip": "Apple M4",
        "memory_budget_bytes": 16 * GIB,
        "memory_leased_bytes": 4 * GIB,
        "in_flight": 2,
        "max_rows": None,
        "models": (NodeModel(name="tiny", state="ready"),),
    }
    return NodeRow(**{**values, **changes})
