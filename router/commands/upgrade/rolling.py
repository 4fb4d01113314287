"""`router upgrade-nodes`: drains, upgrades and restarts one node after another."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.api.admin.views import NodeRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, Unreachable, read_rows
from router.commands.drain import Drain, wait_drained
from router.commands.nodes import set_state
from router.states import ACTIVE, KIND_OPENAI
from serving.terminal.interrupt import Stopped

POLL_S = 0.5
NODE, HOST = "{node}", "{host}"


@dataclass(frozen=True, slots=True)
class Rolling:
    """The way through the nodes."""

    nodes: Sequence[str]
    """All agents that can be reached if empty."""
    command: Sequence[str]
    """Program and arguments that upgrade and restart one node; `NODE` and `HOST` in them are
    replaced by the node's name and by the host of its address."""
    deadline_s: float
    """Most seconds until a node has no requests."""
    back_s: float
    """Most seconds until its agent is back."""
    call: Callable[[Sequence[str]], int] = subprocess.call
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def run(client: AdminClient, rolling: Rolling) -> None:
    """Goes through the nodes, and stops at the first that does not come back: it stays cordoned,
    and those after it are not touched. Raises `CommandFailed`."""
    rows = _chosen(client, rolling.nodes)
    clock, pause = rolling.clock, rolling.pause
    for number, row in enumerate(rows):
        console.print_line(f"{row.name} ({number + 1} of {len(rows)}), mlx-fleet {row.version}")
        wait_drained(
            client, Drain(row.name, rolling.deadline_s, cut=False, clock=clock, pause=pause)
        )
        try:
            _call(rolling, row)
            back = _until_back(client, rolling, row)
        except CommandFailed as error:
            raise CommandFailed(f"{error.message} {_next(rows[number:])}") from error
        except KeyboardInterrupt:
            raise Stopped(f"Stopped. {_next(rows[number:])}") from None
        if row.state == ACTIVE:
            set_state(client, row.name, ACTIVE)
            state = "it takes requests again"
        else:
            state = f"it stays {row.state}, as before"
        console.print_line(f"{row.name} is back with mlx-fleet {back.version}; {state}.")


def _next(rows: Sequence[NodeRow]) -> str:
    """Says what to do about the first of these nodes, which failed, and those after it."""
    name, *rest = [row.name for row in rows]
    options = " ".join(f"--node {each}" for each in rest)
    more = f"; `{options}` goes on with the rest" if rest else ""
    return f"{name} stays cordoned: `router uncordon {name}` once it is well{more}."


def _chosen(client: AdminClient, names: Sequence[str]) -> list[NodeRow]:
    rows = {row.name: row for row in read_rows(NodeRow, client.get("/nodes"))}
    for name in names:
        if name not in rows:
            raise CommandFailed(f"There is no node {name!r}; `router nodes` lists them.")
        if rows[name].kind == KIND_OPENAI:
            raise CommandFailed(f"{name} is not a node agent: upgrade that server by itself.")
        if not rows[name].reachable:
            raise CommandFailed(f"{name} cannot be reached; `router doctor` says why.")
    chosen = [rows[name] for name in names] or [
        row for row in rows.values() if row.kind != KIND_OPENAI and row.reachable
    ]
    if not chosen:
        raise CommandFailed("No node agent can be reached; `router doctor` says why.")
    return chosen


def _call(rolling: Rolling, row: NodeRow) -> None:
    host = urlsplit(row.url).hostname or ""
    command = [each.replace(NODE, row.name).replace(HOST, host) for each in rolling.command]
    try:
        code = rolling.call(command)
    except OSError as error:
        raise CommandFailed(f"{command[0]}: {error.strerror}.") from error
    if code != 0:
        raise CommandFailed(f"The command ended with {code}.")


def _until_back(client: AdminClient, rolling: Rolling, before: NodeRow) -> NodeRow:
    """Waits until another process of the agent is connected; returns the node's row."""
    until_s = rolling.clock() + rolling.back_s
    with console.progress(f"{before.name}: waiting for its agent"):
        while True:
            row = _row(client, before.name)
            if row is not None and row.reachable and row.instance_id != before.instance_id:
                return row
            if rolling.clock() >= until_s:
                raise CommandFailed(_why(before, row, rolling.back_s))
            rolling.pause(POLL_S)


def _row(client: AdminClient, name: str) -> NodeRow | None:
    """Returns the node's row; None while the router itself does not respond."""
    try:
        rows = read_rows(NodeRow, client.get("/nodes"))
    except Unreachable:
        return None
    for row in rows:
        if row.name == name:
            return row
    raise CommandFailed(f"The node {name} has been removed meanwhile.")


def _why(before: NodeRow, row: NodeRow | None, back_s: float) -> str:
    if row is not None and row.reachable:
        return f"{before.name} runs the same agent process as before: does the command restart it?"
    error = f": {row.error}" if row is not None and row.error else "."
    return f"{before.name} is not back after {wording.span(back_s)}{error}"
