"""`router wake`, on a router that is played."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.commands import wake as command
from router.commands.client import AdminClient, CommandFailed
from tests.router.commands.node_rows import node_row

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]
MAC = "a0:b1:c2:d3:e4:f5"


class SleepingNode:
    """A router with one node that wakes after so many looks at it."""

    def __init__(self, wakes_after: int | None, **changes: Any) -> None:
        self.left = wakes_after
        self.is_waking = False
        self.changes = changes
        self.orders: list[tuple[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.orders.append((request.url.path, json.loads(request.content)))
            self.is_waking = request.url.path.endswith("/wake")
            return httpx.Response(200, json=self.row())
        if self.is_waking:
            self.left = None if self.left is None else self.left - 1
            self.is_waking = self.left is not None
        return httpx.Response(200, json=[self.row()])

    def row(self) -> dict[str, Any]:
        values = {"reachable": self.left == 0, "macs": (MAC,), "is_waking": self.is_waking}
        return node_row("studio", **{**values, **self.changes}).model_dump(mode="json")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "POLL_S", 0.0)


def test_it_waits_until_the_node_responds(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    router = SleepingNode(3)
    command.wake(played(router), "studio", as_json=False)
    assert capsys.readouterr().out == "studio has woken.\n"
    assert router.orders == [("/admin/nodes/wake", {"node": "studio"})]


def test_one_that_is_awake_is_left_alone(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    router = SleepingNode(0)
    command.wake(played(router), "studio", as_json=False)
    assert capsys.readouterr().out == "studio is awake.\n" and router.orders == []


def test_a_failure_says_what_may_be_the_reason(played: Played) -> None:
    with pytest.raises(CommandFailed, match=r"studio does not respond\. .*pmset -a womp 1"):
        command.wake(played(SleepingNode(None)), "studio", as_json=False)
    with pytest.raises(CommandFailed, match="no node 'gone'"):
        command.wake(played(SleepingNode(0)), "gone", as_json=False)


def test_scripts_get_the_node(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    command.wake(played(SleepingNode(1)), "studio", as_json=True)
    assert json.loads(capsys.readouterr().out)["reachable"] is True


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({"wakes": True}, f"Requests may wake studio at {MAC}.\n"),
        ({"wakes": False}, f"Requests do not wake studio at {MAC}.\n"),
        ({"wakes": True, "macs": ()}, "it once it is connected.\nRequests may wake studio.\n"),
    ],
)
def test_what_is_set_is_shown(
    played: Played, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], printed: str
) -> None:
    router = SleepingNode(0, **changes)
    command.set_waking(played(router), "studio", MAC, wakes=None, as_json=False)
    assert capsys.readouterr().out.endswith(printed)
    assert router.orders == [("/admin/nodes/waking", {"node": "studio", "mac": MAC, "wakes": None})]
