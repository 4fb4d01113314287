"""`router models pull`, `cancel-pull`, `rm`."""

import time
from collections.abc import Callable
from typing import Any

import typer

from router.api.admin.disk_views import PullStarted
from router.api.admin.views import ModelPlace, ModelRow, OrderDone
from router.commands import console
from router.commands.client import AdminClient, CommandFailed, goes_on, read_row, read_rows
from serving.terminal.interrupt import Stopped

POLL_S = 0.5
ORDER_TIMEOUT_S = 3600.0
"""A node that is to share a model reads all of it first."""
SILENT_S = 15.0
"""How long a node may tell nothing of a pull that it has begun."""
PULLING = "pulling"


def pull(client: AdminClient, asked: dict[str, Any]) -> None:
    """Begins a pull and shows how far it is; Ctrl-C leaves it running."""
    with console.progress(f"asking for {asked['model']}"), goes_on(f"The pull of {asked['model']}"):
        answer = client.post("/models/pull", asked, ORDER_TIMEOUT_S)
    started = read_row(PullStarted, answer)
    if not started.source:
        console.say(f"{started.model} is on {started.node} already.")
        return
    if started.note:
        console.say(started.note)
    what = f"{started.model}: {started.source} -> {started.node}"
    try:
        with console.bar(what) as show:
            _follow(client, started, show)
    except KeyboardInterrupt:
        raise Stopped(
            f"The pull of {started.model} to {started.node} goes on without this command; "
            f"`router models` shows how far it is, and `router models cancel-pull {started.model} "
            f"--node {started.node}` ends it."
        ) from None
    console.say(f"{started.model} is on {started.node} now, from {started.source}.")


def cancel_pull(client: AdminClient, model: str, node: str | None) -> None:
    answer = client.post("/models/cancel-pull", {"model": model, "node": node})
    done = read_row(OrderDone, answer)
    console.say(f"The pull of {done.model} to {', '.join(done.nodes)} is cancelled.")


def remove(client: AdminClient, model: str, node: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(f"Delete {model} from the disk of {node}?", abort=True)
    with console.progress(f"deleting {model}"), goes_on(f"The deletion of {model}"):
        answer = client.post("/models/remove", {"model": model, "node": node}, ORDER_TIMEOUT_S)
    done = read_row(OrderDone, answer)
    console.say(f"{done.model} is deleted from {', '.join(done.nodes)}.")


def _follow(client: AdminClient, started: PullStarted, show: Callable[[int, int], None]) -> None:
    """Returns when the model is complete. Raises `CommandFailed` where that is not to be."""
    seen_s = time.monotonic()
    while True:
        place = _place(read_rows(ModelRow, client.get("/models")), started)
        if place is not None:
            seen_s = time.monotonic()
            if place.state != PULLING:
                return
            if place.reachable and place.reason is not None:
                raise CommandFailed(
                    f"{started.model} is not complete on {started.node}: {place.reason}"
                )
            show(place.disk_bytes, place.weight_bytes)
        elif time.monotonic() - seen_s > SILENT_S:
            raise CommandFailed(
                f"{started.node} tells no more of the pull of {started.model}; has it been "
                "cancelled? `router models` shows what there is."
            )
        time.sleep(POLL_S)


def _place(rows: list[ModelRow], started: PullStarted) -> ModelPlace | None:
    """What the node tells of this pull, not of one before it."""
    for row in rows:
        if row.name == started.model:
            for place in row.nodes:
                if place.node != started.node:
                    continue
                if not place.reachable or place.state != PULLING:
                    return place
                return place if place.since_s >= started.since_s else None
    return None
