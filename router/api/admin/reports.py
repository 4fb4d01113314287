"""`/admin/registry`, `/admin/usage` and `/admin/audit`."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query

from registry import audit, keys, nodes, teams, usage
from registry.db import ReadSession
from registry.records import UsageTotal
from router.api.admin.gate import CurrentAdmin
from router.api.admin.report_views import AuditRow, UsageRow
from router.api.admin.views import RegistryRow
from router.limits.account import DAY_S

MOST_S = 253_402_300_799.0
"""The end of the year 9999."""
At = Annotated[float | None, Query(ge=0, le=MOST_S, allow_inf_nan=False)]
Groups = Annotated[list[Literal["key", "team", "model", "node", "day"]], Query(max_length=5)]
_SUMS = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    "cost",
)


async def show_registry(admin: CurrentAdmin) -> RegistryRow:
    """Reports if the registry can be written."""
    trouble, ledger = admin.core.registry.trouble, admin.core.ledger
    return RegistryRow(
        error=trouble.sentence or None,
        failing_s=trouble.for_s,
        waiting_rows=ledger.waiting_rows,
        lost_rows=ledger.lost_rows,
    )


async def show_usage(
    admin: CurrentAdmin,
    by: Groups = ["key", "model"],  # noqa: B006
    since_s: At = None,
    until_s: At = None,
) -> list[UsageRow]:
    """Totals by `by`, over the requests that finished at `since_s` or later and before
    `until_s`."""
    async with admin.core.registry.read() as session:
        sums = await usage.totals(session, tuple(dict.fromkeys(by)), since_s, until_s)
        name = await _namer(session)
    return [name(each) for each in sums]


async def _namer(session: ReadSession) -> Callable[[UsageTotal], UsageRow]:
    """Returns what makes rows of sums, with the names of keys, teams and nodes, deleted ones
    too."""
    known_keys = {key.id: key for key in await keys.list_all(session)}
    team_names = {team.id: team.name for team in await teams.list_all(session, with_deleted=True)}
    node_names = {node.id: node.name for node in await nodes.list_all(session)}

    def row(total: UsageTotal) -> UsageRow:
        key = known_keys.get(total.key_id or "")
        named: dict[str, Any] = {}
        if total.key_id is not None:
            named["key"] = key.name if key else total.key_id
            named["key_revoked"] = key is None or key.revoked_at_s is not None
        if total.team_id is not None:
            named["team"] = team_names.get(total.team_id, total.team_id)
        if total.node_id is not None:
            named["node"] = node_names.get(total.node_id, total.node_id)
        if total.day is not None:
            named["day"] = datetime.fromtimestamp(total.day * DAY_S, UTC).date().isoformat()
        sums = {name: getattr(total, name) for name in _SUMS}
        return UsageRow(key_id=total.key_id, model=total.model, **named, **sums)

    return row


async def show_audit(
    admin: CurrentAdmin,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    since_s: At = None,
) -> list[AuditRow]:
    """Lists the newest entries, newest first; only those of `since_s` or later, if given."""
    async with admin.core.registry.read() as session:
        return [AuditRow(**asdict(each)) for each in await audit.recent(session, limit, since_s)]
