"""`router cordon` to `router schedule`: what they take and print, on a running router."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import httpx
import pytest

from router.api.admin.views import ScheduleRow
from router.commands.client import AdminClient, CommandFailed
from router.commands.connection import ConnectFailed
from router.commands.drain import Drain, drain, maintain, read_options
from router.commands.lifecycle import add_schedule, list_schedules, pin, read_keep_alive
from serving.terminal.interrupt import Stopped
from tests.fakes import FakeClock
from tests.router.cli.test_main import Cli
from tests.router.commands.running import running_router

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with running_router(tmp_path_factory.mktemp("router")) as place:
        yield Cli(place)


def test_for_ever_and_the_default_have_words() -> None:
    assert (read_keep_alive("forever"), read_keep_alive("default")) == (0.0, None)
    assert read_keep_alive("2h") == 7200.0


def test_empty_listings_print_what_that_means(cli: Cli) -> None:
    assert "by their own settings" in cli.must("policies")
    assert "`router schedule add` makes one" in cli.must("schedule", "list")
    assert json.loads(cli.must("policies", "--json")) == []
    assert json.loads(cli.must("schedule", "list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["cordon", "gone"], 1, "gone"),
        (["pin", "m", "--node", "gone"], 1, "no node 'gone'"),
        (["keep-alive", "m", "long"], 1, "not a duration"),
        (["drain", "gone", "--cut"], 1, "--cut needs --deadline"),
        (["maintenance", "gone", "--off", "--cut"], 2, "leave --deadline and --cut out"),
        (["maintenance", "gone", "--off", "--deadline", "5m"], 2, "--deadline"),
        (["models", "--json", "rm", "m", "--node", "n"], 2, "options go after the verb"),
        (["models", "--router", "http://elsewhere", "pull", "m"], 2, "router models pull"),
        (["models", "pull", "m", "--from", "n", "--hub-token", "t"], 2, "no --hub-token"),
        (["up", "--model", "m"], 2, "--once"),
        (["schedule", "add", "--model", "m", "--load", "8 am"], 2, "--load"),
        (["schedule", "add", "--model", "m", "--unload", "61 * * * *"], 2, "--unload"),
        (
            ["schedule", "add", "--model", "m", "--load", "0 8 * * *", "--timezone", "X"],
            2,
            "--timezone",
        ),
        (["schedule", "add", "--model", "m"], 2, "--load, --unload or both"),
        (["schedule", "rm", "gone"], 1, "no schedule 'gone'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    done = cli.run(*arguments)
    assert done.exit_code == code
    assert message in done.stderr


def test_a_new_schedule_prints_when_it_is_due_by_its_own_clock(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    row: dict[str, object] = {"id": "s", "model": "m", "node": None, "load": "0 8 * * *"}
    row |= {"unload": None, "timezone": "Asia/Tokyo", "next_load_s": 1_700_002_800.0}
    row |= dict.fromkeys(["load_fired_s", "unload_fired_s", "next_unload_s", "pending"])
    add_schedule(played(lambda _: httpx.Response(200, json=row)), {}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "Schedule s: m on the best node.",
        "Next load: 2023-11-15 08:00 Asia/Tokyo.",
    ]


@pytest.mark.parametrize(
    ("left", "printed"),
    [
        ([], "m is no longer pinned: its keep-alive applies."),
        (["mini"], "m is still pinned on mini: `router unpin m --node mini`."),
        ([None], "m is still pinned on every node that has it: `router unpin m`."),
    ],
)
def test_an_unpin_prints_the_pins_that_are_left(
    left: list[str | None], printed: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    def policy(node: str | None, pinned: bool, model: str = "m") -> dict[str, object]:
        return {"model": model, "node": node, "pinned": pinned, "keep_alive_s": 9.0}

    def router(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH":
            return httpx.Response(200, json=policy("studio", False))
        kept = [policy(None, True, "other"), policy("studio", False)]
        return httpx.Response(200, json=[*kept, *(policy(node, True) for node in left)])

    pin(played(router), "m", "studio", pinned=False)
    assert capsys.readouterr().out.replace("\n", " ").strip() == printed


def test_why_a_schedule_is_pending_is_printed_below_the_list(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    row = dict.fromkeys(ScheduleRow.model_fields) | {"id": "s1", "model": "m", "timezone": "UTC"}
    row |= {"load": "0 8 * * *", "pending": "load", "pending_error": "There is no room."}
    client = played(lambda _request: httpx.Response(200, json=[row]))
    list_schedules(client, as_json=False)
    assert "s1: load failed: There is no room." in capsys.readouterr().out
    list_schedules(client, as_json=True)
    assert json.loads(capsys.readouterr().out) == [row]


class PlayedNode:
    """A router whose one node has a number of requests in flight at each poll."""

    def __init__(
        self,
        *in_flight: int,
        models: int = 0,
        kind: str = "agent",
        clock: Callable[[], float] = float,
    ) -> None:
        self.clock = clock
        self.cut_s = math.inf
        self.left = list(in_flight)
        self.models = models
        self.kind = kind
        self.reachable = True
        self.orders: list[tuple[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.orders.append((request.url.path, json.loads(request.content)))
            if request.url.path.endswith("/cut"):
                self.left, self.cut_s = [0], self.clock()
            return httpx.Response(200, json=self.row(0))
        count = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return httpx.Response(200, json=[self.row(count)])

    def row(self, count: int) -> dict[str, object]:
        row: dict[str, object] = dict.fromkeys(
            ["error", "status_age_s", "version", "engine", "chip", "max_rows"]
        )
        row |= dict.fromkeys(["memory_budget_bytes", "memory_leased_bytes"])
        models = [{"name": "m", "state": "ready"}] * self.models
        row |= {"id": "n", "name": "mini", "url": "http://n", "kind": self.kind, "models": models}
        row |= {"created_at_s": 1.0, "reachable": self.reachable}
        return row | {"in_flight": 0, "leases": count}


def leave(client: AdminClient, deadline_s: float | None, *, cut: bool = False) -> None:
    clock = FakeClock()
    drain(client, Drain("mini", deadline_s, cut, clock, clock.advance))


def test_a_drain_waits_and_prints_the_count_as_it_falls(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    node = PlayedNode(2, 2, 1, 0)
    leave(played(node), None)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["mini: 2 requests in flight", "mini: 1 request in flight"]
    assert "mini is drained" in printed.out
    assert node.orders == [("/admin/nodes/state", {"node": "mini", "state": "cordoned"})]


def test_a_drain_that_is_not_done_at_its_deadline_reports_how_many_are_left(played: Played) -> None:
    with pytest.raises(CommandFailed, match="still has 3 requests in flight; `--cut` cancels them"):
        leave(played(PlayedNode(3)), 600.0)


def test_a_drain_does_not_wait_for_what_a_node_that_is_gone_reported_last(played: Played) -> None:
    node = PlayedNode(3)
    node.reachable = False
    leave(played(node), None)


def test_what_is_left_at_the_deadline_is_cut_where_that_is_requested(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    node = PlayedNode(3, clock=clock)
    began_s = clock()
    drain(played(node), Drain("mini", 60.0, True, clock, clock.advance))
    assert node.orders == [
        ("/admin/nodes/state", {"node": "mini", "state": "cordoned"}),
        ("/admin/nodes/cut", {"node": "mini"}),
    ]
    assert 60.0 <= node.cut_s - began_s < 61.0
    assert "mini is drained" in capsys.readouterr().out


def test_nothing_is_cut_where_all_have_ended_before_the_deadline(played: Played) -> None:
    node = PlayedNode(3, 1, 0)
    leave(played(node), 60.0, cut=True)
    assert [path for path, _ in node.orders] == ["/admin/nodes/state"]


def test_maintenance_prints_where_models_stay(played: Played) -> None:
    clock = FakeClock()
    node = PlayedNode(0, models=1)
    with pytest.raises(CommandFailed, match="still has 1 model loaded"):
        maintain(played(node), Drain("mini", 5.0, False, clock, clock.advance))
    assert node.orders[-1] == ("/admin/nodes/state", {"node": "mini", "state": "maintenance"})


def test_maintenance_waits_for_no_models_of_a_server_of_others(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    node = PlayedNode(1, 0, models=2, kind="openai")
    maintain(played(node), Drain("mini", None, False, clock, clock.advance))
    printed = " ".join(capsys.readouterr().out.split())
    assert "no requests, it manages its models itself" in printed
    assert node.orders[-1] == ("/admin/nodes/state", {"node": "mini", "state": "maintenance"})


def test_maintenance_has_one_deadline_for_requests_and_models(played: Played) -> None:
    clock = FakeClock()
    node = PlayedNode(*[1] * 8, 0, models=1)
    began_s = clock()
    with pytest.raises(CommandFailed, match="still has 1 model loaded"):
        maintain(played(node), Drain("mini", 5.0, False, clock, clock.advance))
    assert clock() - began_s == pytest.approx(5.0)


class PlayedOutage:
    """A router that is away for some polls, and then has no status of its node for some."""

    def __init__(self, away: int, without_status: int) -> None:
        self.node = PlayedNode(2)
        self.away = away
        self.unheard = without_status

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return self.node(request)
        if self.away:
            self.away -= 1
            raise ConnectFailed("refused")
        self.node.reachable = not self.unheard
        self.unheard = max(0, self.unheard - 1)
        if self.node.reachable:
            self.node.left = [1, 0] if self.node.left == [2] else self.node.left
        return self.node(request)


def test_a_drain_outlasts_a_restart_of_the_router(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(played(PlayedOutage(3, 3)), 60.0)
    printed = capsys.readouterr()
    assert printed.err.count("Waiting for it.") == 1
    assert printed.err.splitlines()[-1] == "mini: 1 request in flight"
    assert "mini is drained" in printed.out


def test_a_drain_whose_router_stays_away_ends_at_its_deadline(played: Played) -> None:
    with pytest.raises(CommandFailed, match=r"No router responds .* mini stays cordoned"):
        leave(played(PlayedOutage(1000, 0)), 5.0)


def test_a_drain_is_not_done_while_nobody_can_know_it(played: Played) -> None:
    with pytest.raises(CommandFailed, match=r"has no status of mini yet. mini stays cordoned"):
        leave(played(PlayedOutage(1, 1000)), 1.0)


@pytest.mark.parametrize(("command", "state"), [(drain, "cordoned"), (maintain, "maintenance")])
def test_an_interruption_prints_the_state_that_the_node_stays_in(
    command: Callable[[AdminClient, Drain], None], state: str, played: Played
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    node = PlayedNode(0 if state == "maintenance" else 1, models=1)
    with pytest.raises(Stopped, match=rf"stays .*{state}; `router uncordon mini` ends that"):
        command(played(node), Drain("mini", None, False, FakeClock(), interrupt))
    assert node.orders[-1][1] == {"node": "mini", "state": state}


def test_a_deadline_is_a_length_of_time() -> None:
    assert read_options("mini", "10m", cut=True).deadline_s == 600.0
    assert read_options("mini", None, cut=False).deadline_s is None
