"""`router alias set`, `rm`, `list`."""

import time

from rich.text import Text

from router.api.admin_views import AliasRow
from router.commands import console, wording
from router.commands.client import AdminClient, in_path, read_row, read_rows

NO_ALIASES = "There are no aliases yet; `router alias set NAME MODEL` makes one."


def set_target(client: AdminClient, name: str, target: str, *, force: bool) -> None:
    answer = client.put(f"/aliases/{in_path(name)}", {"target": target, "force": force})
    row = read_row(AliasRow, answer)
    console.say(f"{row.name} now means {row.target}.")
    if not row.known:
        console.say("No node has reported that model yet.", style="yellow")


def remove(client: AdminClient, name: str) -> None:
    row = read_row(AliasRow, client.delete(f"/aliases/{in_path(name)}"))
    console.say(f"Removed the alias {row.name} of {row.target}.")


def show(client: AdminClient, *, as_json: bool) -> None:
    answer = client.get("/aliases")
    if as_json:
        console.print_json(answer)
        return
    rows = read_rows(AliasRow, answer)
    if not rows:
        console.say(NO_ALIASES)
        return
    now_s = time.time()
    console.print_table(
        ("Alias", "Model", "", "Made"),
        [
            (
                row.name,
                row.target,
                Text("" if row.known else "no node has it", style="yellow"),
                wording.ago(row.created_at_s, now_s),
            )
            for row in rows
        ],
    )
