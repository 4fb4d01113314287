"""`router usage`, `audit`."""

import time

from router.api.admin.views import AuditRow, RegistryRow, UsageRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, read_row, read_rows

NO_USAGE = "No request has finished in that time; `router chat MODEL` sends one."
NO_AUDIT = "Nothing has been changed yet."

_COUNTS = ("Requests", "Prompt tokens", "of them cached", "Completion tokens")


def show_usage(
    client: AdminClient, since: str | None, *, as_json: bool, wide: bool = False
) -> None:
    response = client.get("/usage", since_s=since_time(since, time.time()))
    registry = read_row(RegistryRow, client.get("/registry"))
    if as_json:
        console.print_json(response)
        _print_registry_trouble(registry)
        return
    rows = read_rows(UsageRow, response)
    if not rows and registry.error is None:
        console.print_line(NO_USAGE)
    elif rows:
        _print_usage(rows, wide=wide)
    _print_registry_trouble(registry)


def _print_registry_trouble(row: RegistryRow) -> None:
    if row.error is None:
        return
    waiting = wording.counted(row.waiting_rows, "request")
    words = f"For {wording.span(row.failing_s)} nothing can be written: {row.error}"
    console.print_error(f"{words} Not counted yet: {waiting}.", style="red")
    if row.lost_rows:
        console.print_error(
            f"Never counted: {wording.counted(row.lost_rows, 'request')}.", style="red"
        )


def _print_usage(rows: list[UsageRow], *, wide: bool) -> None:
    columns = ["Key", "Model", *(f">{name}" for name in _COUNTS)]
    if any(row.cost is not None for row in rows):
        columns.append(">Cost")
    cells = [_usage_cells(row)[: len(columns)] for row in rows]
    console.print_table(columns, cells, ("of them cached", "Cost"), wide=wide)


def _usage_cells(row: UsageRow) -> tuple[str, ...]:
    return (
        row.key,
        row.model,
        wording.number(row.requests),
        wording.number(row.prompt_tokens),
        wording.number(row.cached_tokens),
        wording.number(row.completion_tokens),
        "" if row.cost is None else f"{row.cost:.2f}",
    )


def show_audit(client: AdminClient, limit: int, *, as_json: bool) -> None:
    response = client.get("/audit", limit=limit)
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(AuditRow, response)
    if not rows:
        console.print_line(NO_AUDIT)
        return
    now_s = time.time()
    console.print_table(
        ("When", "Key", "Did", "To", "Detail"),
        [
            (wording.ago(row.at_s, now_s), row.actor, row.verb, row.subject, row.detail)
            for row in rows
        ],
    )


def since_time(since: str | None, now_s: float) -> float | None:
    """Returns the time that lies the given duration before now."""
    return None if since is None else max(0.0, now_s - durations.read_s(since))
