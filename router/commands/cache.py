"""`router cache clear`: deletes the KV that nodes have stored."""

import typer

from router.api.admin.views import ClearedRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, continues_in_router, read_rows

CLEAR_TIMEOUT_S = 300.0


def clear(
    client: AdminClient, node: str | None, model: str | None, *, yes: bool, as_json: bool
) -> None:
    """Prints what each node has freed. Raises `CommandFailed` if a node could not be cleared."""
    what, where = model or "all models", node or "all nodes"
    if not yes:
        typer.confirm(f"Delete the stored KV of {what} on {where}?", abort=True)
    with console.progress("clearing caches"), continues_in_router("Clearing the caches"):
        response = client.post("/cache/clear", {"node": node, "model": model}, CLEAR_TIMEOUT_S)
    rows = read_rows(ClearedRow, response)
    if as_json:
        console.print_json(response)
    else:
        console.print_table(
            ("Node", "Models", ">Memory", ">Disk"), [_cells(row) for row in rows], ("Models",)
        )
        for row in rows:
            if row.skipped:
                skipped = ", ".join(row.skipped)
                console.print_line(
                    f"Not cleared on {row.node}: {skipped}, being loaded or busy; try again in a "
                    "moment."
                )
    failed = [f"{row.node}: {row.error}" for row in rows if row.error is not None]
    if failed:
        raise CommandFailed(f"Not every cache was cleared. {' '.join(failed)}")


def _cells(row: ClearedRow) -> tuple[str, ...]:
    if row.error is not None:
        return row.node, "failed", "", ""
    models = ", ".join(row.models) or "none is loaded"
    return row.node, models, wording.size(row.memory_bytes), wording.size(row.disk_bytes)
