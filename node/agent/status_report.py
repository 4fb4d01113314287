"""The body of `GET /v1/node/status`: a node's memory, its models and their engines."""

from typing import Any

import msgspec

from node.engines.slot import EngineState
from node.engines.supervisor import Supervisor
from node.ipc.messages import EngineStats, Pressure
from node.protocol.messages import MemoryPressure, ModelStatus
from node.protocol.paths import VERSION

PATH = f"{VERSION}/node/status"


def node_report(supervisor: Supervisor) -> dict[str, Any]:
    """The node's memory and models; JSON types only. Figures from engines are up to a second
    old."""
    budget = supervisor.budget
    engines = supervisor.engines()
    granted_bytes = budget.fixed_bytes + budget.stored_bytes
    pressure = pressure_of(supervisor)
    return {
        "memory": {
            "limit_bytes": budget.total_bytes,
            "leased_bytes": granted_bytes,
            "stored_kv_bytes": budget.stored_bytes,
            "free_bytes": max(budget.total_bytes - granted_bytes, 0),
            "pressure": pressure.level,
            "pressure_s": pressure.for_s,
            "pressure_effect": pressure.effect,
            "stored_kv_cap_bytes": pressure.stored_cap_bytes,
        },
        "models": [
            _model(status, engines.get(status.name), supervisor) for status in supervisor.status()
        ],
        "broken": [{"name": each.name, "reason": each.reason} for each in supervisor.broken],
    }


def pressure_of(supervisor: Supervisor) -> MemoryPressure:
    """The machine's memory pressure, and the limits that its engines keep for it."""
    stats = [engine.handle.link.stats for engine in supervisor.engines().values()]
    caps = [each.stored_cap_bytes for each in stats if each is not None]
    known = [cap for cap in caps if cap is not None]
    return MemoryPressure(
        level=supervisor.pressure.name.lower(),
        for_s=supervisor.pressure_age_s,
        stored_cap_bytes=sum(known) if known else None,
    )


def reported_pressure(supervisor: Supervisor) -> MemoryPressure | None:
    """The same; None if nothing is limited or refused."""
    pressure = pressure_of(supervisor)
    is_free = supervisor.pressure is Pressure.NONE and pressure.stored_cap_bytes is None
    return None if is_free else pressure


def _model(
    status: ModelStatus, engine: EngineState | None, supervisor: Supervisor
) -> dict[str, Any]:
    shown = msgspec.structs.asdict(status)
    # The engine's own figures have names.
    del shown["speed"]
    if status.cache is not None:
        shown["cache"] = msgspec.structs.asdict(status.cache)
    if engine is None:
        return shown
    stats = engine.handle.link.stats
    return {
        **shown,
        "lease": msgspec.structs.asdict(supervisor.budget.lease(status.name)),
        "cache_events": engine.cache_events,
        "engine": None if stats is None else _engine(stats),
    }


def _engine(stats: EngineStats) -> dict[str, Any]:
    """The engine's figures by name, without those that the agent itself has."""
    prompt_tokens = stats.prefill_tokens + stats.cached_tokens
    return {
        **{
            name: value
            for name, value in msgspec.structs.asdict(stats).items()
            if name not in ("lease", "confirmed")
        },
        "prefill_rates": [msgspec.structs.asdict(rate) for rate in stats.prefill_rates],
        "decode_rates": [msgspec.structs.asdict(rate) for rate in stats.decode_rates],
        "hit_share": stats.cached_tokens / prompt_tokens if prompt_tokens else None,
    }
