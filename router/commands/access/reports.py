"""`router usage`, `audit`."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal

from rich.text import Text

from router.api.admin.report_views import AuditRow, UsageRow
from router.api.admin.views import RegistryRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, CommandFailed, read_row, read_rows
from serving.own_machine import is_loopback
from serving.terminal.output import put

NO_USAGE = "No request has finished in that time; `router chat MODEL` sends one."
NO_AUDIT = "Nothing has been changed in that time."

GROUPS = ("key", "team", "model", "node", "day")
Form = Literal["table", "json", "csv"]
_COUNTS = ("Requests", "Prompt", "Cached", "Completion", "Reasoning")
"""Heads of the counts: requests, and tokens, where those cached are part of the prompt's, and
reasoning of the completion's."""
_CSV_COUNTS = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    "cost",
)


def show_usage(
    client: AdminClient,
    by: Sequence[str],
    period: tuple[float | None, float | None],
    form: Form = "table",
    *,
    wide: bool = False,
) -> None:
    """Prints sums by groups over a period (its begin, its end)."""
    since_s, until_s = period
    response = client.get("/usage", by=list(by), since_s=since_s, until_s=until_s)
    registry = read_row(RegistryRow, client.get("/registry"))
    rows = read_rows(UsageRow, response)
    if form == "json":
        console.print_json(response)
    elif form == "csv":
        put(usage_csv(rows, by), end="")
    elif rows:
        _print_usage(rows, by, wide=wide)
    elif registry.error is None:
        console.print_line(NO_USAGE)
    for sentence in registry_trouble(registry):
        console.print_error(sentence, style="red")


def read_groups(given: list[str] | None) -> list[str]:
    """Parses the groups of `--by`."""
    groups = [part.strip() for each in given or ["key", "model"] for part in each.split(",")]
    for group in groups:
        if group not in GROUPS:
            known = f"{', '.join(GROUPS[:-1])} or {GROUPS[-1]}"
            raise CommandFailed(f"--by is {known}, not {group!r}.")
    return list(dict.fromkeys(groups))


def usage_csv(rows: list[UsageRow], by: Sequence[str]) -> str:
    """The rows as CSV, with a line of column names."""
    names = [*(["key_id"] if "key" in by else []), *by, *_CSV_COUNTS]
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(names)
    lines.writerows([[getattr(row, name) for name in names] for row in rows])
    return out.getvalue()


def registry_trouble(row: RegistryRow) -> Iterator[str]:
    """Yields sentences about failing writes; none while they succeed."""
    if row.error is None:
        return
    waiting = wording.counted(row.waiting_rows, "request")
    words = f"For {wording.span(row.failing_s)} nothing can be written: {row.error}"
    yield f"{words} Not counted yet: {waiting}."
    if row.lost_rows:
        yield f"Never counted: {wording.counted(row.lost_rows, 'request')}."


def _print_usage(rows: list[UsageRow], by: Sequence[str], *, wide: bool) -> None:
    columns = [*(group.capitalize() for group in by), *(f">{name}" for name in _COUNTS)]
    if any(row.cost is not None for row in rows):
        columns.append(">Cost")
    cells = [[*(_group(row, group) for group in by), *_usage_cells(row)] for row in rows]
    console.print_table(
        columns,
        [line[: len(columns)] for line in cells],
        ("Reasoning", "Cost", "Cached"),
        wide=wide,
    )


def _group(row: UsageRow, group: str) -> str:
    name: str = getattr(row, group) or "none"
    return f"{name} (revoked)" if group == "key" and row.key_revoked else name


def _usage_cells(row: UsageRow) -> tuple[str, ...]:
    return (
        wording.number(row.requests),
        wording.number(row.prompt_tokens),
        wording.number(row.cached_tokens),
        wording.number(row.completion_tokens),
        wording.number(row.reasoning_tokens),
        "" if row.cost is None else f"{row.cost:.2f}",
    )


# --- audit ---


def show_audit(
    client: AdminClient, limit: int, since_s: float | None, *, as_json: bool, wide: bool = False
) -> None:
    response: Any = client.get("/audit", limit=limit, since_s=since_s)
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(AuditRow, response)
    if not rows:
        console.print_line(NO_AUDIT)
        return
    now_s = time.time()
    console.print_table(
        ("When", "Key", "From", "Did", "To", "Detail"),
        [_audit_cells(row, now_s) for row in rows],
        wide=wide,
    )


def _audit_cells(row: AuditRow, now_s: float) -> tuple[str | Text, ...]:
    failed = row.outcome != "done"
    return (
        wording.ago(row.at_s, now_s),
        row.actor or "none",
        "local" if not row.client or is_loopback(row.client) else row.client,
        row.verb,
        row.subject,
        Text(f"{row.outcome}: {row.detail}" if failed else row.detail, "red" if failed else ""),
    )


# --- times ---


def read_time(text: str | None, now_s: float) -> float | None:
    """Parses a duration before now, or a day (its beginning in UTC); returns seconds since the
    epoch."""
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return max(0.0, now_s - durations.read_s(text))
    return max(0.0, datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
