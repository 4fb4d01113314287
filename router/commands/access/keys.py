"""`router keys create`, `list`, `show`, `revoke`, `set-budget`."""

import math
import time
from typing import Any

from rich.text import Text

from router.api.admin.key_views import KeyRow, LimitsRow, NewKey, RevokedKey
from router.commands import console, wording
from router.commands.access.key_changes import limits_text, summary
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows
from serving.terminal.output import put

NO_KEYS = "There are no keys yet; `router keys create NAME` makes one."


def create(client: AdminClient, body: dict[str, Any], *, as_json: bool) -> None:
    response = client.post("/keys", body)
    if as_json:
        console.print_json(response)
        return
    row = read_row(NewKey, response)
    put(row.key)
    expiry = "" if row.expires_at_s is None else f"; expires {_expiry(row, time.time())}"
    console.err().print(
        f"This is the key {row.name} ({summary(row)}{expiry}). "
        "It is shown this once; keep it safe.",
        soft_wrap=True,
    )


def revoke(client: AdminClient, id_or_name: str) -> None:
    row = read_row(RevokedKey, client.delete(f"/keys/{in_path(id_or_name)}"))
    if row.already and row.revoked_at_s is not None:
        when = wording.ago(row.revoked_at_s, time.time())
        console.print_line(f"The key {row.name} ({row.prefix}…) is revoked already, {when}.")
        return
    console.print_line(f"Revoked the key {row.name} ({row.prefix}…).")


def set_budget(client: AdminClient, id_or_name: str, budget: float | None) -> None:
    response = client.patch(f"/keys/{in_path(id_or_name)}", {"paid_budget": budget})
    row = read_row(KeyRow, response)
    if row.paid_budget is None:
        console.print_line(f"The key {row.name} may not use paid servers.")
        return
    console.print_line(
        f"The key {row.name} may use paid servers for {row.paid_budget:g} a month; "
        f"{row.paid_spent:.2f} of this month's is used."
    )


def read_amount(text: str) -> float | None:
    """Parses an amount; returns None for `none`."""
    if text == "none":
        return None
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise CommandFailed(f"The amount is a number such as 20, or none; {text!r} is neither.")
    return amount


def show(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response = client.get("/keys")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(KeyRow, response)
    if not rows:
        console.print_line(NO_KEYS)
        return
    now_s = time.time()
    console.print_table(
        (*_COLUMNS, "State", "Made", "Expires"),
        [
            (
                row.name,
                f"{row.prefix}…",
                row.id,
                row.team or "",
                ", ".join(row.scopes),
                "all" if row.models is None else ", ".join(row.models),
                _limits(row),
                row.priority,
                "yes" if row.isolated else "no",
                _paid(row),
                key_state(row, now_s),
                wording.ago(row.created_at_s, now_s),
                _expiry(row, now_s),
            )
            for row in rows
        ],
        ("Made", "Isolated", "Class", "Id", "Models", "Expires", "Paid", "Limits", "Team"),
        wide=wide,
    )


_COLUMNS = (
    *("Name", "Key", "Id", "Team", "Scopes", "Models", "Limits"),
    *("Class", "Isolated", ">Paid"),
)


def _limits(row: KeyRow) -> str:
    return "" if row.limits == LimitsRow() else limits_text(row.limits)


def show_one(client: AdminClient, id_or_name: str, *, as_json: bool) -> None:
    response = client.get(f"/keys/{in_path(id_or_name)}")
    if as_json:
        console.print_json(response)
        return
    row, now_s = read_row(KeyRow, response), time.time()
    cells = [
        ("Key", f"{row.prefix}…, id {row.id}"),
        ("Scopes", ", ".join(row.scopes)),
        ("Team", row.team or "none"),
        ("Models", "all" if row.models is None else ", ".join(row.models)),
        ("Class", row.priority + (", isolated" if row.isolated else "")),
        ("Limits", limits_text(row.limits)),
        *_use(row),
        ("Paid servers", _paid(row)),
        ("State", key_state(row, now_s).plain),
        ("Made", wording.ago(row.created_at_s, now_s)),
        ("Expires", _expiry(row, now_s)),
        *_rotated(row, now_s),
    ]
    console.print_table(("Name", row.name), cells)


def _use(row: KeyRow) -> list[tuple[str, str]]:
    """The rest of the limits, and their use this day."""
    use = row.use
    if use is None:
        return []
    left = [
        f"{wording.number(number)} {words}"
        for number, words in ((use.requests_left, "requests"), (use.tokens_left, "tokens"))
        if number is not None
    ]
    rows = [("Left now", ", ".join(left))] if left else []
    today = f"{wording.number(use.tokens_today)} tokens, {use.open_requests} open requests"
    return [*rows, ("Used today", today)]


def _rotated(row: KeyRow, now_s: float) -> list[tuple[str, str]]:
    """The last rotation."""
    if row.rotated_at_s is None:
        return []
    when = wording.ago(row.rotated_at_s, now_s)
    if row.old_until_s is not None and row.old_until_s > now_s:
        left = wording.until(row.old_until_s, now_s)
        return [("Rotated", f"{when}; the old secret {row.old_prefix}… ends {left}")]
    return [("Rotated", when)]


def key_state(row: KeyRow, now_s: float) -> Text:
    if row.revoked_at_s is not None:
        return Text(f"revoked {wording.ago(row.revoked_at_s, now_s)}", style="red")
    if row.expires_at_s is not None and row.expires_at_s <= now_s:
        return Text("expired", style="red")
    return Text("valid", style="green")


def _paid(row: KeyRow) -> str:
    """Shows the cost of this month and its limit."""
    return "no" if row.paid_budget is None else f"{row.paid_spent:.2f} of {row.paid_budget:g}"


def _expiry(row: KeyRow, now_s: float) -> str:
    return wording.until(row.expires_at_s, now_s)
