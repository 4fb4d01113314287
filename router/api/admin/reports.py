"""`/admin/registry`, `/admin/usage`, `/admin/audit` and `/admin/logs`."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query

from node.protocol.logs import MOST_LINES, LogPage, page_of
from registry import audit, keys, nodes, teams, usage
from registry.db import ReadSession
from registry.records import UsageTotal
from router.api.admin.gate import CurrentAdmin
from router.api.admin.models import client_of, named_agent
from router.api.admin.report_views import AuditRow, LogLineRow, LogRow, UsageRow
from router.api.admin.views import RegistryRow
from router.core import Core
from router.errors import BadRequest, RouterError
from router.limits.account import DAY_S
from router.states import KIND_AGENT
from router.types import NodeView
from serving.logs.recent import RECENT

MOST_S = 253_402_300_799.0
"""The end of the year 9999."""
At = Annotated[float | None, Query(ge=0, le=MOST_S, allow_inf_nan=False)]
Cursors = Annotated[list[str] | None, Query(max_length=1000)]
_MOST_DIGITS = 15
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


async def show_logs(
    admin: CurrentAdmin,
    node: str | None = None,
    own: bool = False,  # noqa: FBT001, FBT002
    lines: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    after: Cursors = None,
) -> list[LogRow]:
    """Lists the newest lines of each log, the router's own and those of all agents, or only the
    router's (`own`) or one agent's. `after` has `NODE:CURSOR` of each log that was read before,
    with an empty name for the router's own."""
    core, begins = admin.core, dict(map(_cursor, after or ()))
    rows = [] if node else [_log_row(None, page_of(RECENT, lines, *begins.get("", ("", 0))))]
    views: list[NodeView] = []
    if node:
        views = [named_agent(core, node)]
    elif not own:
        views = [view for view in core.fleet.snapshot if view.kind == KIND_AGENT]
    reads = (_read_log(core, view, lines, begins.get(view.name, ("", 0))) for view in views)
    return [*rows, *await asyncio.gather(*reads)]


async def _read_log(core: Core, view: NodeView, most: int, begin: tuple[str, int]) -> LogRow:
    error = view.error or "The node cannot be reached now."
    if view.reachable:
        try:
            return _log_row(view.name, await client_of(core, view).control.logs(most, *begin))
        except RouterError as failure:
            error = failure.message
    return LogRow(node=view.name, cursor="", has_gap=False, error=error, lines=())


def _log_row(node: str | None, page: LogPage) -> LogRow:
    return LogRow(
        node=node,
        cursor=f"{page.instance}-{page.last}",
        has_gap=page.has_gap,
        error=None,
        lines=tuple(LogLineRow(at_s=line.at_s, text=line.text) for line in page.lines),
    )


def _cursor(text: str) -> tuple[str, tuple[str, int]]:
    """Parses `NODE:INSTANCE-NUMBER`. Raises `BadRequest`."""
    name, _, cursor = text.rpartition(":")
    instance, dash, number = cursor.rpartition("-")
    if not (dash and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise BadRequest("after must be NODE:CURSOR, with a cursor of this API.", param="after")
    return name, (instance, int(number))
