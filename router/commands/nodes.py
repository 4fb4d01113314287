"""`router add-node`, `remove-node`, `nodes`."""

import sys
from typing import Any

from rich.text import Text

from router.api.admin_views import NodeRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows

NO_NODES = (
    "The fleet has no nodes yet. Start `node-agent serve` on a Mac, then add it: "
    "`router add-node http://HOST:8801 --token TOKEN`."
)


def add(client: AdminClient, asked: dict[str, Any]) -> None:
    with console.progress(f"asking the node at {asked['url']}", in_pipes=False):
        row = read_row(NodeRow, client.post("/nodes", asked))
    models = wording.several([model.name for model in row.models])
    console.say(f"Added the node {row.name} at {row.url}.")
    if row.error:
        console.say(f"It has since gone: {row.error}", style="yellow")
    console.say(f"Models: {models}" if models else "It has no models yet.")


def remove(client: AdminClient, name: str) -> None:
    row = read_row(NodeRow, client.delete(f"/nodes/{in_path(name)}"))
    console.say(f"Removed the node {row.name}; requests that it still serves go on.")


def show(client: AdminClient, *, as_json: bool) -> None:
    answer = client.get("/nodes")
    if as_json:
        console.print_json(answer)
        return
    rows = read_rows(NodeRow, answer)
    if not rows:
        console.say(NO_NODES)
        return
    console.print_table(
        ("Node", "State", "Address", "Chip", ">Memory used", ">In flight", "Models"),
        [_cells(row) for row in rows],
    )
    for row in rows:
        if row.error:
            console.say(f"{row.name}: {row.error}", style="red")


def read_token(given: str | None) -> str:
    """The token of the option; `-` reads it from standard input, so that no history keeps it."""
    if given != "-":
        return (given or "").strip()
    token = sys.stdin.readline().strip()
    if not token:
        raise CommandFailed("There was no token on standard input.")
    return token


def _cells(row: NodeRow) -> tuple[str | Text, ...]:
    memory = ""
    if row.memory_budget_bytes:
        used = wording.size(row.memory_leased_bytes)
        memory = f"{used} of {wording.size(row.memory_budget_bytes)}"
    return (
        row.name,
        node_state(row),
        row.url,
        row.chip or row.engine or "",
        memory,
        str(row.in_flight),
        wording.several([model.name for model in row.models]),
    )


def node_state(row: NodeRow) -> Text:
    if row.reachable:
        return Text("reachable", style="green")
    if row.heard_ago_s is None:
        return Text("not heard yet", style="red")
    return Text(f"lost, heard {wording.span(row.heard_ago_s)} ago", style="red")
