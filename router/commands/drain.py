"""`router drain`, `maintenance`: a node is left by its requests, and by its models."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from router.api.admin_views import NodeRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, CommandFailed, read_rows
from router.commands.nodes import in_flight, set_state
from router.types import CORDONED, MAINTENANCE

POLL_S = 0.5
CUT_WAIT_S = 10.0
"""Until requests that were ended are gone."""
HELD = ("ready", "loading", "draining")


@dataclass(frozen=True, slots=True)
class Drain:
    """How long to wait for a node's requests, and what becomes of those that are left."""

    node: str
    deadline_s: float | None
    """None: for as long as they take."""
    cut: bool
    """Whether those that are left then are ended."""
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def asked(name: str, deadline: str | None, *, cut: bool) -> Drain:
    """What the options say. Raises `CommandFailed`."""
    if cut and deadline is None:
        raise CommandFailed("--cut needs --deadline: when is what is in flight to be ended?")
    return Drain(name, None if deadline is None else durations.read_s(deadline), cut)


def drain(client: AdminClient, wanted: Drain, *, as_json: bool = False) -> None:
    row = _leave(client, wanted, CORDONED)
    if as_json:
        console.print_json(row.model_dump())
    else:
        console.say(f"{row.name} is drained: no requests in flight, and it takes no new ones.")


def maintain(client: AdminClient, wanted: Drain, *, as_json: bool = False) -> None:
    _leave(client, wanted, CORDONED)
    set_state(client, wanted.node, MAINTENANCE)
    row = _wait(client, wanted, ("model", "still loaded"), _models_held, wanted.deadline_s)
    if _models_held(row):
        raise CommandFailed(
            f"{row.name} is under maintenance, but still has "
            f"{wording.counted(_models_held(row), 'model')} loaded; they leave as soon as they can."
        )
    if as_json:
        console.print_json(row.model_dump())
    else:
        console.say(
            f"{row.name} is under maintenance: no requests, no models in memory. "
            f"`router maintenance {row.name} --off` ends it."
        )


def _leave(client: AdminClient, wanted: Drain, state: str) -> NodeRow:
    set_state(client, wanted.node, state)
    row = _wait(client, wanted, ("request", "in flight"), in_flight, wanted.deadline_s)
    if in_flight(row) and wanted.cut:
        client.post("/nodes/cut", {"node": wanted.node})
        row = _wait(client, wanted, ("request", "being ended"), in_flight, CUT_WAIT_S)
    if in_flight(row):
        how = "of another router" if wanted.cut else "`--cut` ends them"
        left = wording.counted(in_flight(row), "request")
        raise CommandFailed(f"{row.name} still has {left} in flight; {how}. It stays cordoned.")
    return row


def _wait(
    client: AdminClient,
    wanted: Drain,
    what: tuple[str, str],
    count: Callable[[NodeRow], int],
    limit_s: float | None,
) -> NodeRow:
    """The node's row once nothing is left, or at the end of the time."""
    began_s, told = wanted.clock(), -1
    while True:
        row = _row(client, wanted.node)
        left = count(row)
        if left != told and left:
            console.err().print(f"{row.name}: {wording.counted(left, what[0])} {what[1]}")
            told = left
        passed_s = wanted.clock() - began_s
        if not left or (limit_s is not None and passed_s >= limit_s):
            return row
        wanted.pause(POLL_S if limit_s is None else min(POLL_S, limit_s - passed_s))


def _row(client: AdminClient, name: str) -> NodeRow:
    for row in read_rows(NodeRow, client.get("/nodes")):
        if row.name == name:
            return row
    raise CommandFailed(f"The node {name} has been removed meanwhile.")


def _models_held(row: NodeRow) -> int:
    if not row.reachable:
        return 0  # nobody can tell; they leave once it is back
    return sum(model.state in HELD for model in row.models)
