"""`router add-node`, `remove-node`, `nodes`."""

import sys
from typing import Any

from rich.text import Text

from router.api.admin_views import NodeRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows
from router.types import ACTIVE, CORDONED

NO_NODES = (
    "The fleet has no nodes yet. Start `node-agent serve` on a Mac, then add it: "
    "`router add-node http://HOST:8801 --token TOKEN`."
)


def add(client: AdminClient, asked: dict[str, Any]) -> None:
    with console.progress(f"asking the node at {asked['url']}", in_pipes=False):
        row = read_row(NodeRow, client.post("/nodes", asked))
    models = wording.several([model.name for model in row.models])
    console.say(f"Added the node {row.name} at {row.url}.")
    if row.prices:
        console.say("It costs money: only aliases lead there, for keys with a budget.")
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


def set_state(client: AdminClient, name: str, state: str) -> NodeRow:
    return read_row(NodeRow, client.post("/nodes/state", {"node": name, "state": state}))


def cordon(client: AdminClient, name: str, *, as_json: bool = False) -> None:
    row = set_state(client, name, CORDONED)
    if as_json:
        console.print_json(row.model_dump())
        return
    running = in_flight(row)
    left = f"; {wording.counted(running, 'request')} in flight may end" if running else ""
    console.say(f"{row.name} takes no new requests{left}. `router uncordon {row.name}` ends it.")


def uncordon(client: AdminClient, name: str, *, as_json: bool = False) -> None:
    row = set_state(client, name, ACTIVE)
    if as_json:
        console.print_json(row.model_dump())
        return
    console.say(f"{row.name} takes requests again.")


def in_flight(row: NodeRow) -> int:
    """This router's requests and those that the node tells of, as one count."""
    return max(row.in_flight, row.leases)


def read_token(given: str | None) -> str:
    """The token of the option; `-` reads it from standard input, so that no history keeps it."""
    if given != "-":
        return (given or "").strip()
    token = sys.stdin.readline().strip()
    if not token:
        raise CommandFailed("There was no token on standard input.")
    return token


def read_prices(
    price_input: float | None,
    price_output: float | None,
    price_cached: float | None,
    *,
    paid: bool,
) -> dict[str, float | None] | None:
    """The prices of a paid server; None for one that is not."""
    given = {"input": price_input, "output": price_output, "cached": price_cached}
    if not paid:
        if any(price is not None for price in given.values()):
            raise CommandFailed("Prices are of a server that costs money; add --paid.")
        return None
    if price_input is None or price_output is None:
        raise CommandFailed("--paid needs --price-input and --price-output.")
    return given


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
    resting = "" if row.state == ACTIVE else f"; {row.state}"
    if row.reachable and row.state != ACTIVE:
        return Text(row.state, style="yellow")
    failing = sorted({*row.wedged, *(each.model for each in row.breakers)})
    if row.reachable and failing:
        return Text(f"reachable; failing: {', '.join(failing)}", style="red")
    if row.reachable:
        return Text("reachable", style="green")
    if row.heard_ago_s is None:
        return Text(f"not heard yet{resting}", style="red")
    return Text(f"lost, heard {wording.span(row.heard_ago_s)} ago{resting}", style="red")
