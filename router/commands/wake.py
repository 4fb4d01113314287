"""`router wake`: wakes a node that sleeps, and sets how it is woken."""

import time

from router.api.admin.views import NodeRow
from router.commands import console
from router.commands.client import AdminClient, CommandFailed, read_row, read_rows

WAIT_S = 65.0
"""Seconds after which a node that is being woken has responded, or cannot be woken."""
POLL_S = 0.5


def set_waking(
    client: AdminClient, name: str, mac: str | None, *, wakes: bool | None, as_json: bool
) -> None:
    response = client.post("/nodes/waking", {"node": name, "mac": mac, "wakes": wakes})
    if as_json:
        console.print_json(response)
        return
    row = read_row(NodeRow, response)
    if not row.macs:
        console.print_line(
            f"The MAC address of {row.name} is not known yet: its agent reports it once it is "
            "connected.",
            style="yellow",
        )
    may = "may wake" if row.wakes else "do not wake"
    at = f" at {', '.join(row.macs)}" if row.macs else ""
    console.print_line(f"Requests {may} {row.name}{at}.")


def wake(client: AdminClient, name: str, *, as_json: bool) -> None:
    """Wakes a node and waits until it responds. Raises `CommandFailed` if it does not."""
    row = _row(client, name)
    was_awake = row.reachable
    if not was_awake:
        row = read_row(NodeRow, client.post("/nodes/wake", {"node": name}))
        row = _until_awake(client, row)
    if as_json:
        console.print_json(row.model_dump())
    elif was_awake:
        console.print_line(f"{name} is awake.")
    else:
        console.print_line(f"{name} has woken.")


def _until_awake(client: AdminClient, row: NodeRow) -> NodeRow:
    deadline_s = time.monotonic() + WAIT_S
    with console.progress(f"waking {row.name} at {', '.join(row.macs)}"):
        while not row.reachable:
            if time.monotonic() > deadline_s or not row.is_waking:
                raise CommandFailed(
                    f"{row.name} does not respond. Is it asleep, and not off? Does it allow "
                    "waking (`sudo pmset -a womp 1` there), and is it in this router's local "
                    "network?"
                )
            time.sleep(POLL_S)
            row = _row(client, row.name)
    return row


def _row(client: AdminClient, name: str) -> NodeRow:
    rows = read_rows(NodeRow, client.get("/nodes"))
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        raise CommandFailed(f"There is no node {name!r}; `router nodes` lists them.")
    return found
