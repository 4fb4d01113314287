"""`router keys create`, `list`, `revoke`."""

import time
from typing import Any

from rich.text import Text

from router.api.admin_views import KeyRow, NewKey
from router.commands import console, wording
from router.commands.client import AdminClient, in_path, read_row, read_rows

NO_KEYS = "There are no keys yet; `router keys create NAME` makes one."


def create(client: AdminClient, asked: dict[str, Any], *, as_json: bool) -> None:
    answer = client.post("/keys", asked)
    if as_json:
        console.print_json(answer)
        return
    row = read_row(NewKey, answer)
    print(row.key)
    isolated = ", isolated" if row.isolated else ""
    expiry = "" if row.expires_at_s is None else f", expires {_expiry(row, time.time())}"
    console.err().print(
        f"This is the key {row.name} ({', '.join(row.scopes)}; {row.priority}{isolated}{expiry}). "
        "It is shown this once; keep it safe.",
        soft_wrap=True,
    )


def revoke(client: AdminClient, id_or_name: str) -> None:
    row = read_row(KeyRow, client.delete(f"/keys/{in_path(id_or_name)}"))
    console.say(f"Revoked the key {row.name} ({row.prefix}…).")


def show(client: AdminClient, *, as_json: bool) -> None:
    answer = client.get("/keys")
    if as_json:
        console.print_json(answer)
        return
    rows = read_rows(KeyRow, answer)
    if not rows:
        console.say(NO_KEYS)
        return
    now_s = time.time()
    console.print_table(
        ("Name", "Key", "Id", "Scopes", "Class", "Isolated", "State", "Made", "Expires"),
        [
            (
                row.name,
                f"{row.prefix}…",
                row.id,
                ", ".join(row.scopes),
                row.priority,
                "yes" if row.isolated else "no",
                key_state(row, now_s),
                wording.ago(row.created_at_s, now_s),
                _expiry(row, now_s),
            )
            for row in rows
        ],
    )


def key_state(row: KeyRow, now_s: float) -> Text:
    if row.revoked_at_s is not None:
        return Text(f"revoked {wording.ago(row.revoked_at_s, now_s)}", style="red")
    if row.expires_at_s is not None and row.expires_at_s <= now_s:
        return Text("expired", style="red")
    return Text("valid", style="green")


def _expiry(row: KeyRow, now_s: float) -> str:
    return wording.until(row.expires_at_s, now_s)
