"""Tests the output of the listings."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from router.api.admin.key_views import KeyRow
from router.api.admin.views import (
    BreakerRow,
    FoundAgentRow,
    ModelPlace,
    ModelRow,
    NodePressure,
    NodePrices,
)
from router.commands import aliases, console, models, nodes
from router.commands.access import keys, reports, teams
from router.commands.client import AdminClient
from tests.fakes import FakeClock
from tests.router.commands.node_rows import GIB, node_row

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]
SOUND = {"error": None, "failing_s": 0.0, "waiting_rows": 0, "lost_rows": 0}


def answering(rows: list[Any]) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _request: httpx.Response(200, json=[row.model_dump() for row in rows])


def test_nodes_show_memory_models_and_why_one_is_lost(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = node_row("[red]mini", reachable=False, error="It went.", status_age_s=90)
    nodes.show(played(answering([node_row("studio"), lost])), as_json=False)
    text = capsys.readouterr().out
    assert "4.0 GiB of 16.0 GiB" in text
    assert "Apple M4" in text
    assert "lost, last status 1 min ago" in text
    assert "[red]mini: It went." in text


def test_nodes_show_what_is_cordoned_paid_and_failing(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    open_one = BreakerRow(model="tiny", state="open", failures=4, outcomes=5)
    trying = BreakerRow(model="big", state="half_open", failures=1, outcomes=1)
    rows = [
        node_row("studio", state="cordoned", breakers=(open_one, trying), stalled=("slow",)),
        node_row("mini", state="maintenance", reachable=False, error="It went.", status_age_s=None),
        node_row("cloud", prices=NodePrices(input=3, output=15, cached=0.25)),
    ]
    nodes.show(played(answering(rows)), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "cordoned; failing: big, slow, tiny" in text
    assert (
        "studio: tiny failed 4 of its last 5 requests; new ones go to other nodes if possible."
        in text
    )
    assert "studio: big failed 1 of its last 1 requests; one trial request is allowed." in text
    assert "studio: slow makes no progress." in text
    assert "no status yet; maintenance" in text
    assert "reachable; paid" in text
    costs = "3 for a million tokens of prompts, 0.25 of cached ones and 15 of completions"
    assert f"cloud: It costs {costs}." in text
    nodes.show(played(answering(rows)), as_json=True)
    studio, _, cloud = json.loads(capsys.readouterr().out)
    assert (studio["state"], studio["breakers"][0]) == ("cordoned", open_one.model_dump())
    assert cloud["prices"] == {"input": 3, "output": 15, "cached": 0.25}


def test_nodes_show_which_are_short_of_memory(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    pressure = NodePressure(level="soft", for_s=125, stored_cap_bytes=GIB, effect="it does so")
    lost = node_row("mini", reachable=False, pressure=pressure)
    nodes.show(played(answering([node_row("studio", pressure=pressure), lost])), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "studio: Its memory pressure is soft, since 2 min: it does so." in text
    assert "mini: Its memory" not in text, "what it reported last is over"


def test_models_show_each_place_and_its_state(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    def place(name: str, state: str, *, reachable: bool = True) -> ModelPlace:
        return ModelPlace(
            node=name,
            reachable=reachable,
            state=state,
            weight_bytes=GIB,
            context_tokens=4096,
            active_requests=0,
            since_s=0,
            reason="Out of memory." if state == "failed" else None,
        )

    pinned = place("d", "ready").model_copy(update={"pinned": True, "keep_alive_s": 60.0})
    kept = place("f", "ready").model_copy(update={"keep_alive_s": 0.0})
    idle = place("g", "ready").model_copy(update={"keep_alive_s": 1800.0, "idle_s": 300.0})
    lost = place("c", "ready", reachable=False)
    paid = place("e", "ready").model_copy(update={"paid": True})
    coming = place("h", "loading").model_copy(update={"progress": 0.42})
    places = (place("a", "on_disk"), place("b", "failed"), lost, pinned, paid, kept, idle, coming)
    row = ModelRow(
        name="tiny",
        aliases=("gpt",),
        weight_bytes=GIB,
        context_tokens=4096,
        active_requests=0,
        nodes=places,
    )
    models.show(played(answering([row])), as_json=False)
    text = capsys.readouterr().out
    assert "a: on disk; b: failed; c: node not reachable; d: ready and pinned" in text
    assert "e: ready, paid" in text
    assert "f: ready, kept forever" in text
    assert "g: ready, kept for 30 min, idle 5 min" in text
    assert "h: loading 42%" in " ".join(text.split())
    assert "1.0 GiB" in text and "4,096" in text and "gpt" in text
    assert "tiny on b: Out of memory." in text


def test_a_model_that_fits_nowhere_is_marked_where_nodes_and_models_are_listed(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = "It needs 60.5 GiB for the model, and its memory limit is 16.0 GiB: 44.5 GiB too few."
    place = ModelPlace(
        node="mini",
        reachable=True,
        state="on_disk",
        weight_bytes=60 * GIB,
        context_tokens=4096,
        active_requests=0,
        since_s=0.0,
        reason=None,
        no_room=needs,
    )
    large = ModelRow(
        name="big",
        aliases=(),
        weight_bytes=60 * GIB,
        context_tokens=4096,
        active_requests=0,
        nodes=(place, place.model_copy(update={"node": "studio", "node_state": "cordoned"})),
    )
    models.show(played(answering([large])), as_json=False)
    printed = capsys.readouterr().out
    assert "mini: on disk, too large for it" in printed
    assert f"big on mini: {needs}" in printed
    assert "the node is cordoned" in printed
    nodes.show(played(answering([node_row("mini", too_large=("big",))])), as_json=False)
    assert "mini: Its memory is too small for big; `router models`" in capsys.readouterr().out


def test_keys_are_valid_expired_or_revoked() -> None:
    def key(expires_at_s: float | None, revoked_at_s: float | None) -> KeyRow:
        return KeyRow(
            id="1",
            name="ci",
            prefix="mlxf-abc",
            scopes=("inference",),
            priority="default",
            isolated=False,
            paid_budget=None,
            created_at_s=0,
            expires_at_s=expires_at_s,
            revoked_at_s=revoked_at_s,
        )

    assert keys.key_state(key(None, None), 100).plain == "valid"
    assert keys.key_state(key(200, None), 100).plain == "valid"
    assert keys.key_state(key(50, None), 100).plain == "expired"
    assert keys.key_state(key(50, 40), 100).plain == "revoked 1 min ago"


@pytest.mark.parametrize(
    ("show", "step"),
    [
        (lambda client, as_json: nodes.show(client, as_json=as_json), "router add-node"),
        (lambda client, as_json: models.show(client, as_json=as_json), "router nodes"),
        (lambda client, as_json: aliases.show_all(client, as_json=as_json), "router alias set"),
        (lambda client, as_json: keys.show(client, as_json=as_json), "router keys create"),
        (lambda client, as_json: show_usage(client, as_json=as_json), "router chat"),
        (lambda client, as_json: reports.show_audit(client, 5, None, as_json=as_json), "Nothing"),
        (lambda client, as_json: teams.show(client, as_json=as_json), "router teams create"),
    ],
)
def test_an_empty_listing_names_the_next_step(
    played: Played,
    capsys: pytest.CaptureFixture[str],
    show: Callable[[AdminClient, bool], None],
    step: str,
) -> None:
    registry = {"error": None, "failing_s": 0.0, "waiting_rows": 0, "lost_rows": 0}

    def answer(request: httpx.Request) -> httpx.Response:
        is_registry = request.url.path.endswith("/registry")
        return httpx.Response(200, json=registry if is_registry else [])

    show(played(answer), False)
    assert step in capsys.readouterr().out
    show(played(answer), True)
    assert json.loads(capsys.readouterr().out) == []


def test_a_load_prints_where_and_how_long(
    played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=[])
        clock.advance(12.34)
        assert json.loads(request.content) == {"model": "tiny", "node": None}
        return httpx.Response(200, json={"model": "tiny", "nodes": ["a"], "took_s": 1.0})

    monkeypatch.setattr(models, "time", SimpleNamespace(monotonic=clock))
    models.load(played(handler), "tiny", None)
    models.unload(played(handler), "tiny", None)
    text = capsys.readouterr().out
    assert "tiny is ready on a, after 12.3 s." in text
    assert "tiny is unloaded on a." in text


def test_a_load_shows_how_much_of_it_is_done(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    shown_once = threading.Event()

    @contextmanager
    def progress(what: str) -> Iterator[Callable[[str], None]]:
        def show(words: str) -> None:
            shown.append(words)
            shown_once.set()

        yield show

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            place = {"node": "mini", "reachable": True, "state": "loading", "progress": 0.42}
            known = {"weight_bytes": 1, "context_tokens": 1, "active_requests": 0}
            places = [{**place, **known, "since_s": 0.0, "reason": None}]
            return httpx.Response(
                200, json=[{"name": "tiny", "aliases": ["fast"], **known, "nodes": places}]
            )
        assert shown_once.wait(10)
        return httpx.Response(200, json={"model": "tiny", "nodes": ["mini"], "took_s": 1.0})

    monkeypatch.setattr(models, "_POLL_S", 0.001)
    monkeypatch.setattr(console, "progress", progress)
    models.load(played(handler), "fast", None)
    assert shown[0] == "loading fast 42%"


def show_usage(client: AdminClient, *by: str, as_json: bool = False) -> None:
    form: reports.Form = "json" if as_json else "table"
    reports.show_usage(client, by or ("key", "model"), (None, None), form)


def test_usage_reports_that_the_disk_is_full_and_how_much_is_not_counted(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = {"error": "It is full.", "failing_s": 90.0, "waiting_rows": 3, "lost_rows": 0}

    def answer(request: httpx.Request) -> httpx.Response:
        is_usage = request.url.path.endswith("/usage")
        return httpx.Response(200, json=[] if is_usage else registry)

    show_usage(played(answer))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        printed.err
        == "For 1 min nothing can be written: It is full. Not counted yet: 3 requests.\n"
    )
    registry["lost_rows"] = 1
    show_usage(played(answer), as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == []
    assert printed.err.endswith("Never counted: 1 request.\n")


def test_a_rotated_node_and_a_removed_one_that_is_lost_say_what_is_next(
    played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, request.content))
        return httpx.Response(200, json=node_row("studio", reachable=False).model_dump())

    monkeypatch.setattr("sys.stdin", io.StringIO("K3QW-M2XP-9RTE-7HBC\n"))
    nodes.rotate(played(answer), "studio", nodes.read_code("-"))
    nodes.remove(played(answer), "studio")
    text = " ".join(capsys.readouterr().out.split())
    assert "studio has a new secret for this router" in text
    assert "`node-agent unpair` there forgets this router" in text
    assert json.loads(asked[0][2]) == {"node": "studio", "code": "K3QW-M2XP-9RTE-7HBC"}
    assert [path for _, path, _ in asked] == ["/admin/nodes/rotate", "/admin/nodes/studio"]


def test_found_agents_show_what_is_known_of_them(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    new = FoundAgentRow(
        name="[red]mini",
        node_id="n1",
        urls=("https://192.168.1.7:8801",),
        version="1",
        protocol="6",
        chip="Apple M4",
        memory_gib=64,
        node=None,
        paired=False,
        models=None,
    )
    ours = new.model_copy(
        update={"name": "studio", "node": "big", "paired": True, "models": ("tiny",)}
    )
    by_token = ours.model_copy(update={"name": "old", "paired": False, "memory_gib": 0})
    nodes.discover(played(answering([new, ours, by_token])), as_json=False, wide=True)
    text = " ".join(capsys.readouterr().out.split())
    assert "[red]mini new Apple M4 64 GiB https://192.168.1.7:8801 ?" in text
    assert "studio big Apple M4 64 GiB https://192.168.1.7:8801 tiny" in text
    assert "old big (not paired) Apple M4 https://192.168.1.7:8801 tiny" in text
    assert "router add-node AGENT --code CODE" in text
    nodes.discover(played(answering([ours])), as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["paired"] is True
    nodes.discover(played(answering([])), as_json=False)
    assert "Local Network" in capsys.readouterr().out
