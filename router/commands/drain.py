"""`router drain` and `maintenance`: waits until a node has no requests, and no models."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from node.protocol.messages import IN_MEMORY
from router.api.admin.views import NodeRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, CommandFailed, Unreachable, read_rows
from router.commands.nodes import in_flight, set_state
from router.states import CORDONED, KIND_OPENAI, MAINTENANCE
from serving.terminal.interrupt import Stopped

T = TypeVar("T")

POLL_S = 0.5
CUT_WAIT_S = 10.0
"""Seconds until ended requests are gone."""
FIRST_STATUS_S = 5.0
"""Seconds that a router which has just started may be without a node's status."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The wait for a node's requests, and what happens to those that are left."""

    node: str
    deadline_s: float | None
    """No limit if None."""
    cut: bool
    """True if the requests that are left then are ended."""
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def read_options(name: str, deadline: str | None, *, cut: bool) -> Drain:
    """Reads the options. Raises `CommandFailed`."""
    if cut and deadline is None:
        raise CommandFailed(
            "--cut needs --deadline: the time at which requests in flight are cancelled."
        )
    return Drain(name, None if deadline is None else durations.read_s(deadline), cut)


def wait_drained(client: AdminClient, wanted: Drain) -> NodeRow:
    """Cordons the node, and waits until it serves no requests; returns its row. Raises
    `CommandFailed`."""
    return _drained(_Draining(client, wanted), models=False)


def drain(client: AdminClient, wanted: Drain, *, as_json: bool = False) -> None:
    row = wait_drained(client, wanted)
    if as_json:
        console.print_json(row.model_dump())
    else:
        console.print_line(
            f"{row.name} is drained: no requests in flight, and it takes no new ones."
        )


def maintain(client: AdminClient, wanted: Drain, *, as_json: bool = False) -> None:
    row = _drained(_Draining(client, wanted), models=True)
    if as_json:
        console.print_json(row.model_dump())
    else:
        of_models = (
            "it manages its models itself" if row.kind == KIND_OPENAI else "no models in memory"
        )
        console.print_line(
            f"{row.name} is under maintenance: no requests, {of_models}. "
            f"`router maintenance {row.name} --off` ends it."
        )


def _drained(draining: "_Draining", *, models: bool) -> NodeRow:
    """Waits for the node's requests, and with `models` for its models; returns the node's row."""
    try:
        row = draining.requests()
        return draining.models() if models else row
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {draining.stays()}") from None


class _Draining:
    """The wait of one command. It has one deadline for requests and models, and continues across a
    restart of the router."""

    def __init__(self, client: AdminClient, wanted: Drain) -> None:
        """Cordons the node."""
        self._client = client
        self._wanted = wanted
        self._state = CORDONED
        self._started_s = wanted.clock()
        """Start of the wait, or time at which the router responded again."""
        limit_s = wanted.deadline_s
        self._until_s = math.inf if limit_s is None else self._started_s + limit_s
        set_state(client, wanted.node, CORDONED)

    def requests(self) -> NodeRow:
        """Waits until the node serves no requests; returns its row. Raises `CommandFailed`."""
        row = self._wait(("request", "in flight"), in_flight)
        if in_flight(row) and self._wanted.cut:
            self._until_responsive(
                lambda: self._client.post("/nodes/cut", {"node": self._wanted.node})
            )
            self._until_s = self._wanted.clock() + CUT_WAIT_S
            row = self._wait(("request", "being ended"), in_flight)
        if in_flight(row):
            how = "they are another router's" if self._wanted.cut else "`--cut` cancels them"
            left = wording.counted(in_flight(row), "request")
            raise CommandFailed(f"{row.name} still has {left} in flight; {how}. {self.stays()}")
        return row

    def models(self) -> NodeRow:
        """Waits until the node has no models in memory; returns its row. Raises `CommandFailed`."""
        self._until_responsive(lambda: set_state(self._client, self._wanted.node, MAINTENANCE))
        self._state = MAINTENANCE
        row = self._wait(("model", "still loaded"), _loaded_models)
        if _loaded_models(row):
            left = wording.counted(_loaded_models(row), "model")
            raise CommandFailed(
                f"{row.name} is under maintenance, but still has {left} loaded; "
                "they are unloaded as soon as possible."
            )
        return row

    def _wait(self, what: tuple[str, str], count: Callable[[NodeRow], int]) -> NodeRow:
        """Waits until nothing is left or the deadline passes; returns the node's row."""
        printed = -1
        while True:
            row = self._until_responsive(lambda: _row(self._client, self._wanted.node))
            left = count(row)
            if left != printed and left:
                console.print_error(f"{row.name}: {wording.counted(left, what[0])} {what[1]}")
                printed = left
            unknown = self._lacks_status(row)
            if self._is_late() and unknown:
                raise CommandFailed(f"The router has no status of {row.name} yet. {self.stays()}")
            if self._is_late() or not (left or unknown):
                return row
            self._pause()

    def _until_responsive(self, call: Callable[[], T]) -> T:
        """Repeats the call until the router responds; returns its result."""
        is_printed = False
        while True:
            try:
                return call()
            except Unreachable as error:
                if self._is_late():
                    raise CommandFailed(f"{error.message} {self.stays()}") from error
                if not is_printed:
                    console.print_error(f"{error.message} Waiting for it.")
                is_printed = True
            self._pause()
            self._started_s = self._wanted.clock()

    def stays(self) -> str:
        """Describes the node's state after the wait, however it ended."""
        name = self._wanted.node
        state = "under maintenance" if self._state == MAINTENANCE else "cordoned"
        return f"{name} stays {state}; `router uncordon {name}` ends that."

    def _pause(self) -> None:
        left_s = self._until_s - self._wanted.clock()
        self._wanted.pause(max(0.0, min(POLL_S, left_s)))

    def _is_late(self) -> bool:
        return self._wanted.clock() >= self._until_s

    def _lacks_status(self, row: NodeRow) -> bool:
        """Returns True if a router that has just started cannot know the node's requests yet."""
        is_new = self._wanted.clock() - self._started_s < FIRST_STATUS_S
        return is_new and not row.reachable and row.status_age_s is None


def _row(client: AdminClient, name: str) -> NodeRow:
    for row in read_rows(NodeRow, client.get("/nodes")):
        if row.name == name:
            return row
    raise CommandFailed(f"The node {name} has been removed meanwhile.")


def _loaded_models(row: NodeRow) -> int:
    if row.kind == KIND_OPENAI:
        return 0  # no router controls it
    if not row.reachable:
        return 0  # unknown; they are unloaded once it is back
    return sum(model.state in IN_MEMORY for model in row.models)
