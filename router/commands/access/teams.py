"""`router teams create`, `list`, `update`, `delete`."""

import time
from typing import Any

from router.api.admin.key_views import LimitsRow, LimitUse, TeamRow
from router.commands import console, wording
from router.commands.access.key_changes import limits_text
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows

NO_TEAMS = "There are no teams yet; `router teams create NAME` makes one."


def create(client: AdminClient, name: str, limits: dict[str, int | None], *, as_json: bool) -> None:
    response = client.post("/teams", {"name": name, "limits": limits})
    if as_json:
        console.print_json(response)
        return
    row = read_row(TeamRow, response)
    console.print_line(
        f"Made the team {row.name} ({limits_text(row.limits)}); `router keys create NAME --team "
        f"{row.name}` makes a key for it."
    )


def update(client: AdminClient, name: str, limits: dict[str, int | None], *, as_json: bool) -> None:
    if not limits:
        raise CommandFailed("Nothing to change is given; `router teams update --help` lists it.")
    response = client.patch(f"/teams/{in_path(name)}", {"limits": limits})
    if as_json:
        console.print_json(response)
        return
    row = read_row(TeamRow, response)
    console.print_line(f"Changed the team {row.name}: {limits_text(row.limits)}.")


def delete(client: AdminClient, name: str) -> None:
    row = read_row(TeamRow, client.delete(f"/teams/{in_path(name)}"))
    console.print_line(f"Deleted the team {row.name}; `router usage --by team` still names it.")


def show(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response: Any = client.get("/teams")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(TeamRow, response)
    if not rows:
        console.print_line(NO_TEAMS)
        return
    now_s = time.time()
    console.print_table(
        ("Name", "Keys", *LIMIT_COLUMNS, "Made"),
        [
            (
                row.name,
                ", ".join(row.keys),
                *limit_cells(row.limits, row.use),
                wording.ago(row.created_at_s, now_s),
            )
            for row in rows
        ],
        ("Made", "At once", "Keys"),
        wide=wide,
    )


LIMIT_COLUMNS = (">Req/min", ">Tok/min", ">Tok/day", ">At once")


def limit_cells(limits: LimitsRow, use: LimitUse | None) -> tuple[str, ...]:
    """The cells of `LIMIT_COLUMNS`: the limits, with today's tokens and the open requests."""
    today, open_requests = (use.tokens_today, use.open_requests) if use else (0, 0)
    return (
        _most(limits.requests_per_minute),
        _most(limits.tokens_per_minute),
        _of(today, limits.tokens_per_day),
        _of(open_requests, limits.concurrent_requests),
    )


def _most(limit: int | None) -> str:
    return "" if limit is None else wording.number(limit)


def _of(used: int, limit: int | None) -> str:
    return "" if limit is None else f"{wording.number(used)} of {wording.number(limit)}"
