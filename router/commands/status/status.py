"""`router status`, `ps`: the fleet at one moment."""

from dataclasses import asdict

from router.api.admin.report_views import StatusRow
from router.commands import console
from router.commands.client import AdminClient, read_row
from router.commands.status.requests import print_requests
from router.commands.status.screen import loaded_table, queue_lines, screen
from router.commands.status.warnings import hint, warnings


def fetch(client: AdminClient) -> StatusRow:
    return read_row(StatusRow, client.get("/status"))


def show(client: AdminClient, *, as_json: bool) -> None:
    """Prints one screen."""
    status = fetch(client)
    if as_json:
        found = [asdict(each) for each in warnings(status)]
        console.print_json({**status.model_dump(), "warnings": found})
        return
    out = console.out()
    for part in screen(status, client.access.url, out.width):
        out.print(part)


def show_loaded(
    client: AdminClient, *, with_requests: bool, as_json: bool, wide: bool = False
) -> None:
    """Prints the models in memory, and the requests that run or wait."""
    status = fetch(client)
    requests = client.requests() if with_requests else []
    if as_json:
        loaded = [row.model_dump() for row in status.loaded]
        queue = [row.model_dump() for row in status.queue]
        more = {"requests": requests} if with_requests else {}
        console.print_json({"loaded": loaded, "queue": queue, **more})
        return
    if status.loaded:
        table = loaded_table(status)
        console.print_table(table.columns, table.rows, table.less, wide=wide)
    else:
        console.print_line(hint(status) or "No model is in memory.")
    if with_requests:
        print_requests(requests, wide=wide)
        return
    for line in queue_lines(status):
        console.print_line(line)
