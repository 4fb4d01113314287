"""`router doctor`: checks the router, and explains why nodes do not respond."""

import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from rich.text import Text

from router.api.admin.views import NodeCheckRow, OwnCheckRow
from router.commands import console
from router.commands.client import AdminClient, read_rows
from router.commands.nodes import NO_NODES
from serving.unreached import LOCAL_NETWORK, Cause

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_UNREACHED = (Cause.LOCAL_NETWORK, Cause.NO_ROUTE, Cause.SILENT)
_CONNECT_S = 3.0
_ONLY_FROM_HERE = (
    "This command reaches it, and the router, on the same machine, does not: on macOS that is a "
    f"missing permission for the local network. {LOCAL_NETWORK}"
)


def run(client: AdminClient, *, as_json: bool) -> bool:
    """Prints one line for each check of the router and for each node; returns True if none of them
    fails."""
    with console.progress("checking the router, and calling every node"):
        own_response = client.get("/check")
        response = client.post("/nodes/check", {})
    own, rows = read_rows(OwnCheckRow, own_response), read_rows(NodeCheckRow, response)
    here = {
        row.node: can_connect(row.url)
        for row in rows
        if row.finding in _UNREACHED and client.access.is_local
    }
    if as_json:
        # None if it was not tried, since there is nothing to compare.
        called = [{**found, "reached_from_here": here.get(found["node"])} for found in response]
        console.print_json({"router": own_response, "nodes": called})
    else:
        _print(own, rows, here)
    return "fail" not in {*(row.level for row in own), *(row.level for row in rows)}


def _print(
    own: Sequence[OwnCheckRow], rows: Sequence[NodeCheckRow], here: Mapping[str, bool]
) -> None:
    console.print_table(
        ("", "Router", "Found"), [(_level(row.level), row.check, row.message) for row in own]
    )
    if not rows:
        console.print_line(NO_NODES)
        return
    cells = [_cells(row, from_here=here.get(row.node, False)) for row in rows]
    console.print_table(("", "Node", "Found"), cells)


def can_connect(url: str) -> bool:
    """Returns True if this process can connect to the address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _cells(row: NodeCheckRow, *, from_here: bool) -> tuple[str | Text, ...]:
    tried = f" Tried: {', '.join(row.addresses)}." if row.level == "fail" and row.addresses else ""
    is_explained = LOCAL_NETWORK in row.message
    more = f" {_ONLY_FROM_HERE}" if from_here and not is_explained else ""
    return (_level(row.level), row.node, f"{row.message}{tried}{more}")


def _level(level: str) -> Text:
    return Text(level, style=_STYLES.get(level, ""))
