"""Tests the output of the verbs of the disk, and how they follow a pull."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import typer

from router.api.admin.disk_views import PullStarted
from router.api.admin.views import ModelPlace, ModelRow, OrderDone
from router.commands import disk, models
from router.commands.client import AdminClient, CommandFailed
from serving.terminal.interrupt import Stopped

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]
MIB = 1024**2
STARTED = PullStarted(model="org/m", node="b", source="a", since_s=100.0)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "POLL_S", 0.0)


def row(state: str, *, node: str = "b", since_s: float = 100.0, **changes: Any) -> ModelRow:
    values: dict[str, Any] = {
        "node": node,
        "reachable": True,
        "state": state,
        "weight_bytes": 100 * MIB,
        "context_tokens": None,
        "active_requests": 0,
        "since_s": since_s,
        "reason": None,
    }
    return ModelRow(
        name="org/m",
        aliases=(),
        weight_bytes=100 * MIB,
        context_tokens=None,
        active_requests=0,
        nodes=(ModelPlace(**{**values, **changes}),),
    )


class PlayedRouter:
    """Answers a pull, then one list of models after the other."""

    def __init__(self, *lists: list[ModelRow], started: PullStarted = STARTED) -> None:
        self.lists = list(lists)
        self.started = started
        self.requested: dict[str, Any] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/admin/models/pull":
            self.requested = json.loads(request.content)
            return httpx.Response(202, json=self.started.model_dump())
        rows = self.lists.pop(0) if self.lists else []
        return httpx.Response(200, json=[row.model_dump() for row in rows])


def test_a_pull_is_followed_until_the_model_is_there(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    router = PlayedRouter(
        [],
        [row("pulling", since_s=50.0, reason="An earlier one failed.")],
        [row("on_disk", node="a")],
        [row("pulling", progress=0.5, disk_bytes=50 * MIB)],
        [row("pulling", reachable=False, reason=None)],
        [row("on_disk")],
    )
    disk.pull(played(router), {"model": "org/m", "node": "b"})
    assert router.requested == {"model": "org/m", "node": "b"}
    assert router.lists == []
    printed = capsys.readouterr()
    assert printed.out == "org/m is on b now, from a.\n"
    assert "org/m: a -> b" in printed.err


def test_a_model_that_is_there_is_reported_at_once(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    started = STARTED.model_copy(update={"source": ""})
    disk.pull(played(PlayedRouter(started=started)), {"model": "org/m"})
    assert capsys.readouterr().out == "org/m is on b already.\n"


def test_why_a_node_that_has_the_model_is_not_its_source_is_printed(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    started = STARTED.model_copy(update={"note": "Others do not find c."})
    disk.pull(played(PlayedRouter([row("on_disk")], started=started)), {"model": "org/m"})
    assert capsys.readouterr().out == "Others do not find c.\norg/m is on b now, from a.\n"


def test_a_pull_that_fails_reports_the_reason(played: Played) -> None:
    router = PlayedRouter([row("pulling", reason="The peer is gone; pull again.")])
    with pytest.raises(CommandFailed, match="not complete on b: The peer is gone; pull again."):
        disk.pull(played(router), {"model": "org/m"})


def test_a_pull_that_the_node_reports_nothing_of_is_abandoned(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SILENT_S", 0.0)
    with pytest.raises(CommandFailed, match="has it been cancelled"):
        disk.pull(played(PlayedRouter()), {"model": "org/m"})


def test_ctrl_c_leaves_the_pull_running_and_names_the_command_that_ends_it(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    router = PlayedRouter()

    def interrupted(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            raise KeyboardInterrupt
        return router(request)

    with pytest.raises(Stopped) as stopped:
        disk.pull(played(interrupted), {"model": "org/m"})
    message = str(stopped.value)
    assert "continues without this command" in message
    assert "`router models cancel-pull org/m --node b`" in message


def done(*nodes: str) -> Callable[[httpx.Request], httpx.Response]:
    answer = OrderDone(model="org/m", nodes=nodes, took_s=0.0)
    return lambda _request: httpx.Response(200, json=answer.model_dump())


def test_a_cancelled_pull_names_its_nodes(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.cancel_pull(played(done("a", "b")), "org/m", None)
    assert capsys.readouterr().out == "The pull of org/m to a, b is cancelled.\n"


def test_a_removal_asks_first(
    played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(_text: str, *, abort: bool) -> None:
        assert abort
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    with pytest.raises(typer.Abort):
        disk.remove(played(done("b")), "org/m", "b", yes=False)
    disk.remove(played(done("b")), "org/m", "b", yes=True)
    assert capsys.readouterr().out == "org/m is deleted from b.\n"


def test_the_list_shows_disks_and_how_far_pulls_are(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row("on_disk", node="a", disk_bytes=300 * MIB, node_free_bytes=2048 * MIB),
        row("pulling", progress=0.42, disk_bytes=42 * MIB, node_free_bytes=700 * MIB),
    ]
    merged = rows[0].model_copy(update={"nodes": (*rows[0].nodes, *rows[1].nodes)})
    models.show(played(PlayedRouter([merged])), as_json=False)
    printed = capsys.readouterr().out
    assert "a: on disk (300 MiB)" in printed
    assert "b: pulling 42% (42 MiB)" in printed
    assert "Free on disk: a 2.0 GiB, b 700 MiB" in printed
