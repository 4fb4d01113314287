"""Tests for router.commands.upgrade.rolling."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from router.commands.client import CommandFailed
from router.commands.upgrade.rolling import Rolling, run
from serving.terminal.interrupt import Stopped
from tests.fakes import FakeClock
from tests.router.commands.status.test_status import Played, node

COMMAND = ("ssh", "{host}", "upgrade {node}")


class PlayedFleet:
    """A router with two nodes, whose agents are restarted by calls."""

    def __init__(self, *, restarts: bool = True) -> None:
        self.restarts = restarts
        self.code = 0
        self.states = {"a": "active", "b": "active"}
        self.instances = {"a": 1, "b": 1}
        self.seen: list[tuple[str, ...]] = []
        self.clock = FakeClock()
        self.lost: set[str] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            order = json.loads(request.content)
            self.seen.append((order["node"], order["state"]))
            self.states[order["node"]] = order["state"]
            return httpx.Response(200, json=self.row(order["node"]))
        server = node("server", kind="openai").model_dump()
        return httpx.Response(200, json=[*map(self.row, self.states), server])

    def row(self, name: str) -> dict[str, Any]:
        row = node(
            *(name,),
            url=f"https://{name}.local:8801",
            state=self.states[name],
            instance_id=f"{name}{self.instances[name]}",
            in_flight=0,
            reachable=name not in self.lost,
            error="Nothing listens there." if name in self.lost else None,
        )
        return row.model_dump()

    def call(self, command: Sequence[str]) -> int:
        self.seen.append(tuple(command))
        name = command[-1].split()[-1]
        if self.code == 0 and self.restarts:
            self.instances[name] += 1
        return self.code

    def rolling(self, *nodes: str) -> Rolling:
        return Rolling(nodes, COMMAND, 60.0, 30.0, self.call, self.clock, self.clock.advance)


def test_each_node_is_drained_upgraded_and_uncordoned_before_the_next(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    it = PlayedFleet()
    run(played(it), it.rolling())
    assert it.seen == [
        ("a", "cordoned"),
        ("ssh", "a.local", "upgrade a"),
        ("a", "active"),
        ("b", "cordoned"),
        ("ssh", "b.local", "upgrade b"),
        ("b", "active"),
    ]
    assert "b is back with mlx-fleet 1; it takes requests again." in capsys.readouterr().out


def test_a_node_that_was_out_of_service_before_stays_so(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    it = PlayedFleet()
    it.states["a"] = "maintenance"
    run(played(it), it.rolling("a"))
    assert ("a", "active") not in it.seen
    assert "it stays maintenance, as before." in capsys.readouterr().out


def test_a_command_that_fails_ends_it_and_no_other_node_is_touched(played: Played) -> None:
    it = PlayedFleet()
    it.code = 3
    with pytest.raises(CommandFailed, match="ended with 3. a stays cordoned.*`--node b` goes on"):
        run(played(it), it.rolling())
    assert it.states == {"a": "cordoned", "b": "active"}


def test_a_program_that_is_not_there_is_named(played: Played) -> None:
    it = PlayedFleet()
    rolling = Rolling(("b",), ("/no/such/program",), 60.0, 30.0)
    with pytest.raises(CommandFailed, match="/no/such/program: No such file.*router uncordon b"):
        run(played(it), rolling)


@pytest.mark.parametrize(
    ("is_lost", "words"),
    [
        (False, "the same agent process as before"),
        (True, "30 s: Noth"),
    ],
)
def test_an_agent_that_does_not_come_back_ends_it(
    played: Played, is_lost: bool, words: str
) -> None:
    it = PlayedFleet(restarts=False)

    def call(_command: Sequence[str]) -> int:
        it.lost = {"a"} if is_lost else set()
        return 0

    rolling = Rolling(("a",), COMMAND, 60.0, 30.0, call, it.clock, it.clock.advance)
    with pytest.raises(CommandFailed, match=words):
        run(played(it), rolling)
    assert it.states["a"] == "cordoned"


def test_ctrl_c_says_in_which_state_the_node_stays(played: Played) -> None:
    it = PlayedFleet()

    def call(_command: Sequence[str]) -> int:
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match="Stopped. a stays cordoned: `router uncordon a`"):
        run(played(it), Rolling((), COMMAND, 60.0, 30.0, call, it.clock, it.clock.advance))


@pytest.mark.parametrize(
    ("name", "words"),
    [("gone", "no node 'gone'"), ("server", "not a node agent"), ("b", "`router doctor` says why")],
)
def test_what_cannot_be_upgraded_is_refused_before_anything_is_done(
    played: Played, name: str, words: str
) -> None:
    it = PlayedFleet()
    it.lost = {"b"}
    with pytest.raises(CommandFailed, match=words):
        run(played(it), it.rolling("a", name))
    assert it.seen == []
