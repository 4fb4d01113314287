"""`router models`, `load`, `unload`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.text import Text

from router.api.admin.views import ModelPlace, ModelRow, OrderDone
from router.commands import console, wording
from router.commands.client import (
    AdminClient,
    CommandFailed,
    continues_in_router,
    read_row,
    read_rows,
)
from router.states import OUT_OF_SERVICE
from serving.short_names import ShortNames

LOAD_TIMEOUT_S = 3600.0
_POLL_S = 0.5
NO_MODELS = (
    "No node of the fleet has a model yet. `router nodes` shows the nodes and the errors of those "
    "that do not respond."
)


def show(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response = client.get("/models")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(ModelRow, response)
    if not rows:
        console.print_line(NO_MODELS)
        return
    console.print_table(
        ("Model", "Aliases", ">Size", ">Context", ">Active", "On"),
        [_cells(row) for row in rows],
        ("Aliases", "Context"),
        wide=wide,
    )
    free = {place.node: place.node_free_bytes for row in rows for place in row.nodes}
    shown = [f"{node} {wording.size(count)}" for node, count in sorted(free.items()) if count]
    if shown:
        console.print_line(f"Free on disk: {', '.join(shown)}")
    for row in rows:
        for place in row.nodes:
            for sentence in filter(None, (place.reason, place.no_room)):
                console.print_line(f"{row.name} on {place.node}: {sentence}", style="red")


def load(client: AdminClient, model: str, node: str | None) -> None:
    started_s = time.monotonic()
    what = f"loading {model}" + (f" on {node}" if node else "")
    with (
        continues_in_router(f"The load of {model}"),
        console.progress(what) as show,
        _watching(client, model, lambda done: show(f"{what} {done}")),
    ):
        response = client.post("/models/load", {"model": model, "node": node}, LOAD_TIMEOUT_S)
    done = read_row(OrderDone, response)
    console.print_line(
        f"{done.model} is ready on {', '.join(done.nodes)}, "
        f"after {time.monotonic() - started_s:.1f} s."
    )


@contextmanager
def _watching(client: AdminClient, model: str, show: Callable[[str], None]) -> Iterator[None]:
    """Shows the progress of the model's load until the context ends."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            try:
                rows = read_rows(ModelRow, client.get("/models"))
            except CommandFailed:
                # The load command itself reports the error.
                continue
            if (done := _loaded_share(rows, model)) is not None:
                show(f"{done:.0%}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # Bounded, since a request of the thread may wait for the router.
        thread.join(_POLL_S)


def _loaded_share(rows: list[ModelRow], model: str) -> float | None:
    """Returns the progress of the most advanced load of the model; None if none is reported."""
    found = ShortNames(row.name for row in rows).find(model)
    shares = (
        place.progress
        for row in rows
        if row.name in (model, *found) or model in row.aliases
        for place in row.nodes
        if place.state == "loading" and place.progress is not None
    )
    return max(shares, default=None)


def unload(client: AdminClient, model: str, node: str | None) -> None:
    with console.progress(f"unloading {model}"), continues_in_router(f"The unload of {model}"):
        response = client.post("/models/unload", {"model": model, "node": node}, LOAD_TIMEOUT_S)
    done = read_row(OrderDone, response)
    console.print_line(f"{done.model} is unloaded on {', '.join(done.nodes)}.")


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
    is_bad = place.failing or place.no_room is not None
    style = "red" if is_bad else wording.state_style(place.state)
    text.append(", ".join(_place_words(place)), style=style)
    return text.append(f" ({wording.size(place.disk_bytes)})") if place.disk_bytes else text


def _place_words(place: ModelPlace) -> Iterator[str]:
    """Describes the state of a model on a reachable node."""
    done = "" if place.progress is None else f" {place.progress:.0%}"
    yield wording.state_text(place.state) + done + (" and pinned" if place.pinned else "")
    if place.keep_alive_s is not None and not place.pinned:
        yield f"kept {wording.keep_alive_text(place.keep_alive_s)}"
    if place.idle_s is not None:
        yield f"idle {wording.span(place.idle_s)}"
    remarks = {
        "paid": place.paid,
        "failing": place.failing,
        "too large for it": place.no_room is not None,
        f"the node is {OUT_OF_SERVICE.get(place.node_state)}": place.node_state in OUT_OF_SERVICE,
    }
    yield from (words for words, holds in remarks.items() if holds)
