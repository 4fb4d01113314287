"""`router add-node`, `remove-node`, `nodes`, `accept`, `cordon`, `uncordon`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from router.api.admin.views import FoundAgentRow, ModelRow, NodeRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows
from router.states import ACTIVE, CORDONED, KIND_OPENAI, BreakerState

NO_NODES = (
    "The fleet has no nodes yet. Start `node-agent serve` on a Mac, then add it: "
    "`router add-node HOST --code CODE`, with the code that `node-agent pair` shows there."
)
NO_AGENTS = (
    "No agent announces itself in the router's local network. Does it listen beyond loopback "
    "(`node-agent serve --host 0.0.0.0`)? On a Mac, may the router use the local network "
    "(System Settings > Privacy & Security > Local Network)? An agent can be added by its address, "
    "too: `router add-node HOST --code CODE`."
)
_SHOWN = 20
"""Most models that are listed in the suggested command."""
_ELSEWHERE = "new ones go to other nodes if possible"


def add(client: AdminClient, body: dict[str, Any]) -> None:
    with console.progress(f"contacting the node at {body['url']}", in_pipes=False):
        row = read_row(NodeRow, client.post("/nodes", body))
    models = wording.join_some([model.name for model in row.models])
    console.print_line(f"Added the node {row.name} at {row.url}.")
    if row.prices:
        console.print_line("It costs money: only aliases use it, for keys with a budget.")
    if row.error:
        console.print_line(f"It is unreachable now: {row.error}", style="yellow")
    console.print_line(f"Models: {models}" if models else "It has no models yet.")
    if row.kind == KIND_OPENAI:
        _print_server_notes(client, row)


def _print_server_notes(client: AdminClient, row: NodeRow) -> None:
    """Explains what its models mean for clients that request them."""
    here = {model.name for model in row.models}
    models = read_rows(ModelRow, client.get("/models"))
    shared = [each.name for each in models if each.name in here and len(each.nodes) > 1]
    if shared:
        names = wording.join_some(shared)
        console.print_line(
            f"Other nodes have {names}, too: requests go to the best node.", style="yellow"
        )
    console.print_line("Models that it lists later have to be accepted; `router nodes` shows them.")


def discover(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    with console.progress("looking for agents", in_pipes=False):
        response = client.get("/nodes/found")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(FoundAgentRow, response)
    if not rows:
        console.print_line(NO_AGENTS)
        return
    console.print_table(
        ("Agent", "Node", "Chip", ">Memory", "Address", "Models"),
        [_found_cells(row) for row in rows],
        ("Models", "Address"),
        wide=wide,
    )
    if any(row.node is None for row in rows):
        console.print_line(
            "`node-agent pair` on a new one's machine shows a code; `router add-node AGENT --code "
            "CODE` adds it."
        )


def _found_cells(row: FoundAgentRow) -> tuple[str | Text, ...]:
    node = Text("new", style="yellow")
    if row.node is not None:
        node = Text(row.node, style="green")
        node.append("" if row.paired else " (not paired)", style="yellow")
    return (
        row.name,
        node,
        row.chip,
        f"{row.memory_gib} GiB" if row.memory_gib else "",
        row.urls[0],
        "?" if row.models is None else wording.join_some(row.models),
    )


def rotate(client: AdminClient, name: str, code: str | None) -> None:
    with console.progress(f"contacting the node {name}", in_pipes=False):
        row = read_row(NodeRow, client.post("/nodes/rotate", {"node": name, "code": code}))
    console.print_line(f"{row.name} has a new secret for this router; the old one is void.")


def accept(client: AdminClient, name: str, models: Sequence[str]) -> None:
    row = read_row(NodeRow, client.post("/nodes/accept", {"node": name, "models": list(models)}))
    console.print_line(f"Requests for {wording.join_some(models)} may go to {row.name}.")


def remove(client: AdminClient, name: str) -> None:
    row = read_row(NodeRow, client.delete(f"/nodes/{in_path(name)}"))
    console.print_line(f"Removed the node {row.name}; its open requests continue.")
    if row.kind != KIND_OPENAI and not row.reachable:
        console.print_line(
            "It could not be reached: if it was paired, `node-agent unpair` there forgets this "
            "router.",
            style="yellow",
        )


def show(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response = client.get("/nodes")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(NodeRow, response)
    if not rows:
        console.print_line(NO_NODES)
        return
    console.print_table(
        ("Node", "State", "Address", "Chip", ">Memory used", ">In flight", "Models"),
        [_cells(row) for row in rows],
        ("Chip", "Address", "Memory used"),
        wide=wide,
    )
    for row in rows:
        for note, style in notes(row):
            console.print_line(f"{row.name}: {note}", style=style)


def set_state(client: AdminClient, name: str, state: str) -> NodeRow:
    return read_row(NodeRow, client.post("/nodes/state", {"node": name, "state": state}))


def cordon(client: AdminClient, name: str, *, as_json: bool = False) -> None:
    row = set_state(client, name, CORDONED)
    if as_json:
        console.print_json(row.model_dump())
        return
    running = in_flight(row)
    left = f"; {wording.counted(running, 'request')} in flight may end" if running else ""
    console.print_line(
        f"{row.name} takes no new requests{left}. `router uncordon {row.name}` ends it."
    )


def uncordon(client: AdminClient, name: str, *, as_json: bool = False) -> None:
    row = set_state(client, name, ACTIVE)
    if as_json:
        console.print_json(row.model_dump())
        return
    console.print_line(f"{row.name} takes requests again.")


def in_flight(row: NodeRow) -> int:
    """Returns the larger of this router's count and the node's own."""
    # The last report of an unreachable node is outdated.
    return max(row.in_flight, row.leases if row.reachable else 0)


def read_token(given: str | None) -> str:
    """Returns the token of the option; `-` reads it from standard input, so that no shell history
    has it."""
    if given != "-":
        return (given or "").strip()
    token = sys.stdin.readline().strip()
    if not token:
        raise CommandFailed("There was no token on standard input.")
    return token


def read_code(given: str | None) -> str | None:
    """Returns the code of the option; `-` reads it from standard input."""
    if given != "-":
        return given
    return sys.stdin.readline().strip()


def read_prices(
    price_input: float | None,
    price_output: float | None,
    price_cached: float | None,
    *,
    paid: bool,
) -> dict[str, float | None] | None:
    """Returns the prices of a paid server; None for a free one."""
    given = {"input": price_input, "output": price_output, "cached": price_cached}
    if not paid:
        if any(price is not None for price in given.values()):
            raise CommandFailed("Only a paid server has prices; add --paid.")
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
        _state(row),
        row.url,
        row.chip or row.engine or "",
        memory,
        str(row.in_flight),
        wording.join_some([model.name for model in row.models]),
    )


def _state(row: NodeRow) -> Text:
    words, style = reached(row)
    if row.reachable and (failing := _failing(row)):
        words, style = f"{words}; failing: {', '.join(failing)}", "red"
    if row.prices:
        words = f"{words}; paid"
    return Text(words, style=style)


def reached(row: NodeRow) -> tuple[str, str]:
    """Describes if the node is reachable and accepts requests; returns (words, style)."""
    if row.reachable:
        return ("reachable", "green") if row.state == ACTIVE else (row.state, "yellow")
    out_of_service = "" if row.state == ACTIVE else f"; {row.state}"
    if row.status_age_s is None:
        return f"no status yet{out_of_service}", "red"
    return f"lost, last status {wording.span(row.status_age_s)} ago{out_of_service}", "red"


def _failing(row: NodeRow) -> list[str]:
    """Lists models whose requests go to other nodes if possible."""
    return sorted({*row.stalled, *(each.model for each in row.breakers)})


def _pressure(row: NodeRow) -> Iterator[tuple[str, str]]:
    pressure = row.pressure
    # The last report of an unreachable node is outdated.
    if pressure is not None and row.reachable:
        style = "red" if pressure.level == "hard" else "yellow"
        since = wording.span(pressure.for_s)
        yield f"Its memory pressure is {pressure.level}, since {since}: {pressure.effect}.", style


def notes(row: NodeRow) -> Iterator[tuple[str, str]]:
    """Yields notes that do not fit into the table, with their styles."""
    if row.error:
        yield row.error, "red"
    if row.is_waking:
        yield "It is being woken.", "yellow"
    elif row.macs and not row.reachable and row.status_age_s is not None:
        yield f"If it sleeps, `router wake {row.name}` wakes it.", "yellow"
    if row.unaccepted:
        names = " ".join(shlex.quote(model) for model in row.unaccepted[:_SHOWN])
        more = len(row.unaccepted) - _SHOWN
        besides = f" ({more} more of them)" if more > 0 else ""
        command = f"router accept {row.name} {names}"
        yield (
            f"lists models that are not accepted; `{command}` accepts them{besides}.",
            "yellow",
        )
    yield from ((note, "red") for note in _model_notes(row))
    yield from _pressure(row)
    if row.prices:
        price = f"{row.prices.input:g} for a million tokens of prompts"
        if row.prices.cached is not None:
            price += f", {row.prices.cached:g} of cached ones"
        yield f"It costs {price} and {row.prices.output:g} of completions.", ""


def _model_notes(row: NodeRow) -> Iterator[str]:
    """Yields problems with the node's models."""
    for model in row.stalled:
        yield f"{model} makes no progress."
    if row.too_large:
        models = wording.join_some(row.too_large)
        yield f"Its memory is too small for {models}; `router models` shows by how much."
    if row.broken:
        models = wording.join_some(row.broken)
        yield f"The files of {models} are damaged; `router models` says how."
    for each in row.breakers:
        failed = f"{each.model} failed {each.failures} of its last {each.outcomes} requests"
        is_open = each.state == BreakerState.OPEN
        yield f"{failed}; {_ELSEWHERE if is_open else 'one trial request is allowed'}."
