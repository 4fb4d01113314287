"""`router pin`, `unpin`, `keep-alive`, `policies`, `schedule`."""

import time
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from router.api.admin.views import PolicyRow, ScheduleRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, in_path, read_row, read_rows

EVERYWHERE = "every node that has it"


def read_keep_alive(text: str) -> float | None:
    """Parses a duration; returns 0 for `forever` and None for `default`."""
    if text in ("forever", "default"):
        return 0.0 if text == "forever" else None
    return durations.read_s(text)


def pin(client: AdminClient, model: str, node: str | None, *, pinned: bool) -> None:
    row = _change(client, {"model": model, "node": node, "pinned": pinned})
    where = row.node or EVERYWHERE
    if pinned:
        console.print_line(f"{row.model} is pinned on {where}: it stays loaded there.")
        return
    others = [
        other
        for other in read_rows(PolicyRow, client.get("/policies"))
        if other.model == row.model and other.pinned
    ]
    if not others:
        console.print_line(f"{row.model} is no longer pinned: its keep-alive applies.")
    for other in others:
        option = f" --node {other.node}" if other.node else ""
        console.print_line(
            f"{row.model} is still pinned on {other.node or EVERYWHERE}: "
            f"`router unpin {row.model}{option}`."
        )


def keep_alive(client: AdminClient, model: str, text: str, node: str | None) -> None:
    body = {"model": model, "node": node, "keep_alive_s": read_keep_alive(text)}
    row = _change(client, body)
    console.print_line(
        f"{row.model} when idle, on {row.node or EVERYWHERE}: kept {_kept(row, 'for ')}."
    )


def policies(client: AdminClient, *, as_json: bool) -> None:
    response = client.get("/policies")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(PolicyRow, response)
    if not rows:
        console.print_line("There are no policies: nodes keep models by their own settings.")
        return
    console.print_table(
        ("Model", "Node", "Pinned", "Kept when idle"),
        [(row.model, row.node or "every", "yes" if row.pinned else "", _kept(row)) for row in rows],
    )


def _change(client: AdminClient, body: dict[str, Any]) -> PolicyRow:
    return read_row(PolicyRow, client.patch("/policies", body))


def _kept(row: PolicyRow, before: str = "") -> str:
    """Shows the keep-alive; `before` is put before a duration."""
    if row.keep_alive_s is None:
        return "by the node's own settings"
    return wording.keep_alive_text(row.keep_alive_s, before)


# --- schedules ---


def add_schedule(client: AdminClient, body: dict[str, Any], *, as_json: bool) -> None:
    response = client.post("/schedules", body)
    if as_json:
        console.print_json(response)
        return
    row = read_row(ScheduleRow, response)
    console.print_line(f"Schedule {row.id}: {row.model} on {row.node or 'the best node'}.")
    for what, at_s in (("load", row.next_load_s), ("unload", row.next_unload_s)):
        if getattr(row, what):
            console.print_line(f"Next {what}: {_at(at_s, row.timezone)}.")


def list_schedules(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response = client.get("/schedules")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(ScheduleRow, response)
    if not rows:
        console.print_line("There are no schedules; `router schedule add` makes one.")
        return
    console.print_table(
        ("Schedule", "Model", "Node", "Load", "Unload", "Time zone", "Next", "Pending"),
        [_cells(row) for row in rows],
        ("Time zone", "Pending"),
        wide=wide,
    )
    for row in rows:
        if row.pending_error:
            console.print_line(f"{row.id}: {row.pending} failed: {row.pending_error}", style="red")


def remove_schedule(client: AdminClient, schedule_id: str) -> None:
    row = read_row(ScheduleRow, client.delete(f"/schedules/{in_path(schedule_id)}"))
    console.print_line(f"Removed the schedule {row.id} of {row.model}; what is loaded stays.")


def _cells(row: ScheduleRow) -> tuple[str, ...]:
    coming = [
        (at_s, what)
        for what, at_s in (("load", row.next_load_s), ("unload", row.next_unload_s))
        if at_s is not None
    ]
    at_s, what = min(coming, default=(None, ""))
    return (
        row.id,
        row.model,
        row.node or "best",
        row.load or "",
        row.unload or "",
        row.timezone,
        f"{what} {wording.until(at_s, time.time())}" if what else "never",
        row.pending or "",
    )


def _at(at_s: float | None, timezone: str) -> str:
    """Formats a time in the time zone of the cron lines."""
    if at_s is None:
        return "never"
    return f"{datetime.fromtimestamp(at_s, ZoneInfo(timezone)):%Y-%m-%d %H:%M} {timezone}"
