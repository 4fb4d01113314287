"""`/admin/registry`, `/admin/usage` and `/admin/audit`."""

from dataclasses import asdict
from typing import Annotated

from fastapi import Query

from registry import audit, keys, usage
from router.api.admin.gate import CurrentAdmin
from router.api.admin.views import AuditRow, RegistryRow, UsageRow

SinceS = Annotated[float | None, Query(ge=0, allow_inf_nan=False)]


async def show_registry(admin: CurrentAdmin) -> RegistryRow:
    """Reports if the registry can be written."""
    trouble, ledger = admin.core.registry.trouble, admin.core.ledger
    return RegistryRow(
        error=trouble.sentence or None,
        failing_s=trouble.for_s,
        waiting_rows=ledger.waiting_rows,
        lost_rows=ledger.lost_rows,
    )


async def show_usage(admin: CurrentAdmin, since_s: SinceS = None) -> list[UsageRow]:
    """Totals by key and model over the requests that finished at `since_s` or later."""
    async with admin.core.registry.read() as session:
        names = {key.id: key.name for key in await keys.list_all(session)}
        totals = await usage.totals(session, since_s)
    return [
        UsageRow(key=names.get(total.key_id, total.key_id), **asdict(total)) for total in totals
    ]


async def show_audit(
    admin: CurrentAdmin, limit: Annotated[int, Query(ge=1, le=10_000)] = 50
) -> list[AuditRow]:
    """Lists the newest entries, newest first."""
    async with admin.core.registry.read() as session:
        return [AuditRow(**asdict(entry)) for entry in await audit.recent(session, limit)]
