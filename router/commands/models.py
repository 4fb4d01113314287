"""`router models`, `load`, `unload`."""

import time

from rich.text import Text

from router.api.admin_views import ModelPlace, ModelRow, OrderDone
from router.commands import console, wording
from router.commands.client import AdminClient, read_row, read_rows

LOAD_TIMEOUT_S = 3600.0
NO_MODELS = (
    "No node of the fleet has a model yet. `router nodes` shows the nodes and the errors of those "
    "that do not answer."
)


def show(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    answer = client.get("/models")
    if as_json:
        console.print_json(answer)
        return
    rows = read_rows(ModelRow, answer)
    if not rows:
        console.say(NO_MODELS)
        return
    console.print_table(
        ("Model", "Aliases", ">Size", ">Context", ">Active", "On"),
        [_cells(row) for row in rows],
        ("Aliases", "Context"),
        wide=wide,
    )
    free = {place.node: place.node_free_bytes for row in rows for place in row.nodes}
    told = [f"{node} {wording.size(count)}" for node, count in sorted(free.items()) if count]
    if told:
        console.say(f"Free on disk: {', '.join(told)}")
    for row in rows:
        for place in row.nodes:
            if place.reason:
                console.say(f"{row.name} on {place.node}: {place.reason}", style="red")


def load(client: AdminClient, model: str, node: str | None) -> None:
    started_s = time.monotonic()
    with console.progress(f"loading {model}" + (f" on {node}" if node else "")):
        answer = client.post("/models/load", {"model": model, "node": node}, LOAD_TIMEOUT_S)
    done = read_row(OrderDone, answer)
    console.say(
        f"{done.model} is ready on {', '.join(done.nodes)}, "
        f"after {time.monotonic() - started_s:.1f} s."
    )


def unload(client: AdminClient, model: str, node: str | None) -> None:
    with console.progress(f"unloading {model}"):
        answer = client.post("/models/unload", {"model": model, "node": node}, LOAD_TIMEOUT_S)
    done = read_row(OrderDone, answer)
    console.say(f"{done.model} is unloaded on {', '.join(done.nodes)}.")


def _cells(row: ModelRow) -> tuple[str | Text, ...]:
    return (
        row.name,
        ", ".join(row.aliases),
        wording.size(row.weight_bytes) if row.weight_bytes else "?",
        wording.number(row.context_tokens),
        str(row.active_requests),
        Text("; ").join([_place_text(place) for place in row.nodes]),
    )


def _place_text(place: ModelPlace) -> Text:
    text = Text(f"{place.node}: ")
    if not place.reachable:
        return text.append("node not reachable", style="red")
    words = wording.state_words(place.state)
    if place.progress is not None:
        words += f" {place.progress:.0%}"
    if place.pinned:
        words += " and pinned"
    elif place.keep_alive_s is not None:
        words += f", kept {wording.kept(place.keep_alive_s)}"
    if place.idle_s is not None:
        words += f", idle {wording.span(place.idle_s)}"
    if place.paid:
        words += ", paid"
    if place.failing:
        words += ", failing"
    style = "red" if place.failing else wording.state_style(place.state)
    text.append(words, style=style)
    return text.append(f" ({wording.size(place.disk_bytes)})") if place.disk_bytes else text
