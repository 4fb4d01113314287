"""`router drain`, `maintenance`: a node is left by its requests, and by its models."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from router.api.admin.views import NodeRow
from router.commands import console, durations, wording
from router.commands.client import AdminClient, CommandFailed, Unreachable, read_rows
from router.commands.nodes import in_flight, set_state
from router.states import CORDONED, KIND_OPENAI, MAINTENANCE
from serving.terminal.interrupt import Stopped

T = TypeVar("T")

POLL_S = 0.5
CUT_WAIT_S = 10.0
"""Until what was ended is gone."""
FIRST_WORD_S = 5.0
"""How long a router that has just started may know nothing of a node."""
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
    row = _left(_Leaving(client, wanted), models=False)
    if as_json:
        console.print_json(row.model_dump())
    else:
        console.say(f"{row.name} is drained: no requests in flight, and it takes no new ones.")


def maintain(client: AdminClient, wanted: Drain, *, as_json: bool = False) -> None:
    row = _left(_Leaving(client, wanted), models=True)
    if as_json:
        console.print_json(row.model_dump())
    else:
        of_models = (
            "what it keeps in memory is its own affair"
            if row.kind == KIND_OPENAI
            else "no models in memory"
        )
        console.say(
            f"{row.name} is under maintenance: no requests, {of_models}. "
            f"`router maintenance {row.name} --off` ends it."
        )


def _left(leaving: "_Leaving", *, models: bool) -> NodeRow:
    """The node's row once its requests have left, and its models where they have to."""
    try:
        row = leaving.requests()
        return leaving.models() if models else row
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {leaving.stays()}") from None


class _Leaving:
    """The wait of one command: its deadline is that of all that has to leave the node, and it
    outlasts a restart of the router."""

    def __init__(self, client: AdminClient, wanted: Drain) -> None:
        """Cordons the node."""
        self._client = client
        self._wanted = wanted
        self._state = CORDONED
        self._started_s = wanted.clock()
        """Or since when the router answers again."""
        limit_s = wanted.deadline_s
        self._until_s = math.inf if limit_s is None else self._started_s + limit_s
        set_state(client, wanted.node, CORDONED)

    def requests(self) -> NodeRow:
        """The node's row once it serves none. Raises `CommandFailed`."""
        row = self._wait(("request", "in flight"), in_flight)
        if in_flight(row) and self._wanted.cut:
            self._ask(lambda: self._client.post("/nodes/cut", {"node": self._wanted.node}))
            self._until_s = self._wanted.clock() + CUT_WAIT_S
            row = self._wait(("request", "being ended"), in_flight)
        if in_flight(row):
            how = "of another router" if self._wanted.cut else "`--cut` ends them"
            left = wording.counted(in_flight(row), "request")
            raise CommandFailed(f"{row.name} still has {left} in flight; {how}. {self.stays()}")
        return row

    def models(self) -> NodeRow:
        """The node's row once it has none in memory. Raises `CommandFailed`."""
        self._ask(lambda: set_state(self._client, self._wanted.node, MAINTENANCE))
        self._state = MAINTENANCE
        row = self._wait(("model", "still loaded"), _models_held)
        if _models_held(row):
            left = wording.counted(_models_held(row), "model")
            raise CommandFailed(
                f"{row.name} is under maintenance, but still has {left} loaded; "
                "they leave as soon as they can."
            )
        return row

    def _wait(self, what: tuple[str, str], count: Callable[[NodeRow], int]) -> NodeRow:
        """The node's row once nothing is left, or at the end of the time."""
        told = -1
        while True:
            row = self._ask(lambda: _row(self._client, self._wanted.node))
            left = count(row)
            if left != told and left:
                console.tell(f"{row.name}: {wording.counted(left, what[0])} {what[1]}")
                told = left
            unheard = self._is_unheard(row)
            if self._is_late() and unheard:
                raise CommandFailed(f"The router has not heard {row.name} yet. {self.stays()}")
            if self._is_late() or not (left or unheard):
                return row
            self._pause()

    def _ask(self, question: Callable[[], T]) -> T:
        """What the router says to it, once it answers."""
        told = False
        while True:
            try:
                return question()
            except Unreachable as error:
                if self._is_late():
                    raise CommandFailed(f"{error.message} {self.stays()}") from error
                if not told:
                    console.tell(f"{error.message} Waiting for it.")
                told = True
            self._pause()
            self._started_s = self._wanted.clock()

    def stays(self) -> str:
        """What is true of the node, whatever ends the wait."""
        name = self._wanted.node
        state = "under maintenance" if self._state == MAINTENANCE else "cordoned"
        return f"{name} stays {state}; `router uncordon {name}` ends that."

    def _pause(self) -> None:
        left_s = self._until_s - self._wanted.clock()
        self._wanted.pause(max(0.0, min(POLL_S, left_s)))

    def _is_late(self) -> bool:
        return self._wanted.clock() >= self._until_s

    def _is_unheard(self, row: NodeRow) -> bool:
        """Whether a router that has just started cannot know yet what the node serves."""
        is_new = self._wanted.clock() - self._started_s < FIRST_WORD_S
        return is_new and not row.reachable and row.status_age_s is None


def _row(client: AdminClient, name: str) -> NodeRow:
    for row in read_rows(NodeRow, client.get("/nodes")):
        if row.name == name:
            return row
    raise CommandFailed(f"The node {name} has been removed meanwhile.")


def _models_held(row: NodeRow) -> int:
    if row.kind == KIND_OPENAI:
        return 0  # no router has a say in it
    if not row.reachable:
        return 0  # nobody can tell; they leave once it is back
    return sum(model.state in HELD for model in row.models)
