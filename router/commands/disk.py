"""`router models pull`, `cancel-pull`, `rm`."""

import time
from collections.abc import Callable
from typing import Any

import typer

from router.api.admin.disk_views import PullStarted
from router.api.admin.views import ModelPlace, ModelRow, OrderDone
from router.commands import console
from router.commands.client import (
    AdminClient,
    CommandFailed,
    continues_in_router,
    read_row,
    read_rows,
)
from serving.terminal.interrupt import Stopped

POLL_S = 0.5
ORDER_TIMEOUT_S = 3600.0
"""Long, since a node reads a whole model before it shares it."""
SILENT_S = 15.0
"""Seconds that a node may go without reporting a pull that it has begun."""
PULLING = "pulling"


def pull(client: AdminClient, body: dict[str, Any]) -> None:
    """Starts a pull and shows its progress; Ctrl-C leaves it running."""
    with (
        console.progress(f"requesting {body['model']}"),
        continues_in_router(f"The pull of {body['model']}"),
    ):
        response = client.post("/models/pull", body, ORDER_TIMEOUT_S)
    started = read_row(PullStarted, response)
    if not started.source:
        console.print_line(f"{started.model} is on {started.node} already.")
        return
    if started.note:
        console.print_line(started.note)
    what = f"{started.model}: {started.source} -> {started.node}"
    try:
        with console.bar(what) as show:
            _follow(client, started, show)
    except KeyboardInterrupt:
        raise Stopped(
            f"The pull of {started.model} to {started.node} continues without this command; "
            f"`router models` shows its progress, and `router models cancel-pull {started.model} "
            f"--node {started.node}` ends it."
        ) from None
    console.print_line(f"{started.model} is on {started.node} now, from {started.source}.")


def cancel_pull(client: AdminClient, model: str, node: str | None) -> None:
    response = client.post("/models/cancel-pull", {"model": model, "node": node})
    done = read_row(OrderDone, response)
    console.print_line(f"The pull of {done.model} to {', '.join(done.nodes)} is cancelled.")


def remove(client: AdminClient, model: str, node: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(f"Delete {model} from the disk of {node}?", abort=True)
    with console.progress(f"deleting {model}"), continues_in_router(f"The deletion of {model}"):
        response = client.post("/models/remove", {"model": model, "node": node}, ORDER_TIMEOUT_S)
    done = read_row(OrderDone, response)
    console.print_line(f"{done.model} is deleted from {', '.join(done.nodes)}.")


def _follow(client: AdminClient, started: PullStarted, show: Callable[[int, int], None]) -> None:
    """Returns once the model is complete. Raises `CommandFailed` if the pull fails."""
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
                f"{started.node} no longer reports the pull of {started.model}; has it been "
                "cancelled? `router models` shows what there is."
            )
        time.sleep(POLL_S)


def _place(rows: list[ModelRow], started: PullStarted) -> ModelPlace | None:
    """Returns the node's report of this pull, not of an earlier one."""
    for row in rows:
        if row.name == started.model:
            for place in row.nodes:
                if place.node != started.node:
                    continue
                if not place.reachable or place.state != PULLING:
                    return place
                return place if place.since_s >= started.since_s else None
    return None
