"""`router status` and `ps`, as a person and a script read them."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from rich.console import Console

from router.api.admin.report_views import FailedModelRow, LoadedRow, QueueRow, StatusRow
from router.api.admin.views import NodeModel, NodeRow, RegistryRow
from router.commands.client import AdminClient, CommandFailed
from router.commands.status import screen, status, warnings
from tests.router.commands.node_rows import GIB, node_row

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]
SOUND = RegistryRow(error=None, failing_s=0.0, waiting_rows=0, lost_rows=0)
MODEL = "mlx-community/Qwen3-4B-4bit"


def node(name: str, **changes: Any) -> NodeRow:
    busy: dict[str, Any] = {
        "chip": "Apple M4 Max",
        "memory_budget_bytes": 96 * GIB,
        "in_flight": 6,
        "models": (NodeModel(name=MODEL, state="ready"),),
    }
    return node_row(name, **{**busy, **changes})


def loaded(node: str, **changes: Any) -> LoadedRow:
    values: dict[str, Any] = {
        "model": MODEL,
        "node": node,
        "state": "ready",
        "progress": None,
        "running": 6,
        "waiting": 0,
        "max_rows": 4,
        "decode_tokens_per_s": 80.4,
        "prefill_tokens_per_s": 1200.0,
        "memory_bytes": 3 * GIB,
        "context_tokens": 32768,
        "pinned": False,
        "keep_alive_s": 3600.0,
        "unload_in_s": None,
    }
    return LoadedRow(**{**values, **changes})


def fleet(**changes: Any) -> StatusRow:
    values: dict[str, Any] = {
        "version": "1",
        "protocol": 6,
        "oldest_protocol": 6,
        "installed_by": "pip",
        "nodes": (node("studio"),),
        "loaded": (loaded("studio"),),
        "queue": (),
        "failed": (),
        "known_models": 3,
        "in_flight": 6,
        "decode_tokens_per_s": 80.4,
        "prefill_tokens_per_s": 1200.0,
        "registry": SOUND,
    }
    return StatusRow(**{**values, **changes})


def drawn(row: StatusRow, width: int = 80) -> str:
    console = Console(width=width, file=None, record=True, quiet=False)
    with console.capture() as captured:
        for part in screen.screen(row, "http://127.0.0.1:8800", width):
            console.print(part)
    return captured.get()


def words(text: str) -> str:
    return " ".join(text.split())


def telling(row: StatusRow, requests: list[Any] | None = None) -> Callable[..., httpx.Response]:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/requests":
            return httpx.Response(200, json={"object": "list", "data": requests})
        assert request.url.path == "/admin/status"
        return httpx.Response(200, json=row.model_dump())

    return respond


def test_one_screen_shows_nodes_models_requests_and_rates() -> None:
    text = words(drawn(fleet()))
    assert "1 of 1 node reachable · 6 requests running · 0 waiting · 80 tokens/s · prefill" in text
    assert "studio reachable Apple M4 Max 4.0 GiB of 96.0 GiB 6 80" in text
    assert "studio 3.0 GiB 4 + 2 wait 80" in text


def test_every_line_fits_into_80_columns() -> None:
    busy = fleet(
        nodes=tuple(node(f"mac-studio-number-{number}") for number in range(3)),
        loaded=tuple(loaded(f"mac-studio-number-{number}", waiting=12) for number in range(3)),
    )
    assert max(map(len, drawn(busy).splitlines())) <= 80


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"pinned": True}, "pinned"),
        ({"unload_in_s": 250.0}, "4 min more"),
        ({"keep_alive_s": 0.0}, "forever"),
        ({}, "1 h"),
        ({"state": "loading", "progress": 0.43, "keep_alive_s": None}, "loading 43%"),
        ({"keep_alive_s": None}, ""),
    ],
)
def test_how_long_a_model_stays(changes: dict[str, Any], kept: str) -> None:
    (row,) = screen.loaded_table(fleet(loaded=(loaded("studio", **changes),))).rows
    assert str(row[-1]) == kept


def test_small_rates_have_a_fraction_and_unknown_ones_are_left_blank() -> None:
    rates = (None, 0.0, 3.14159, 25.7, 1234.5)
    assert [screen.rate(each) for each in rates] == ["", "0", "3.1", "26", "1,234"]


def test_the_queue_is_shown_and_a_long_wait_is_a_warning() -> None:
    row = fleet(queue=(QueueRow(model=MODEL, priority="batch", waiting=2, oldest_s=95.0),))
    text = words(drawn(row))
    assert f"Waiting for {MODEL} (batch): 2, the oldest for 1 min" in text
    assert f"`router models pull {MODEL} --node NODE`" in text
    short = fleet(queue=(QueueRow(model=MODEL, priority="batch", waiting=2, oldest_s=5.0),))
    assert warnings.warnings(short) == []


def test_each_warning_says_what_to_do() -> None:
    row = fleet(
        nodes=(
            node("gone", reachable=False, error="It went.", status_age_s=90.0),
            node("old", version="0"),
            node("resting", state="cordoned"),
            node("repaired", state="maintenance"),
        ),
        failed=(FailedModelRow(model=MODEL, node="old", reason="It is too large."),),
        registry=RegistryRow(
            error="The disk is full.", failing_s=61.0, waiting_rows=3, lost_rows=0
        ),
    )
    lines = [each.line for each in warnings.warnings(row)]
    assert lines[0].startswith("For 1 min nothing can be written: The disk is full.")
    assert "gone: It went." in lines
    assert "gone: it serves nothing now; `router doctor` says why." in lines
    how = "`router upgrade-plan` shows how to upgrade."
    assert f"old: it runs mlx-fleet 0, this router 1; {how}" in lines
    assert any("`router uncordon resting`" in line for line in lines)
    assert any("`router maintenance repaired --off`" in line for line in lines)
    assert lines[-1] == (
        f"{MODEL}: old could not load it: It is too large. `router load {MODEL} --node old` "
        "tries again."
    )


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"nodes": (), "loaded": (), "known_models": 0}, "`router add-node HOST --code CODE`"),
        ({"nodes": (node("a", reachable=False),), "loaded": ()}, "`router doctor` says why"),
        ({"loaded": (), "known_models": 0}, "`router models pull OWNER/NAME`"),
        ({"loaded": ()}, "`router chat MODEL`"),
        ({"nodes": (node("a", kind="openai"),), "loaded": ()}, ""),
        ({}, ""),
    ],
)
def test_a_fleet_that_serves_nothing_yet_gets_its_next_step(
    changes: dict[str, Any], hint: str
) -> None:
    found = warnings.hint(fleet(**changes))
    assert hint in found and bool(hint) == bool(found)


def test_text_of_nodes_cannot_steer_the_terminal() -> None:
    row = fleet(nodes=(node("a", reachable=False, error="\x1b[2Jgone"),), loaded=())
    assert "\x1b[2J" not in drawn(row)


def test_status_as_json_has_the_warnings(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    row = fleet(nodes=(node("studio", state="cordoned"),))
    status.show(played(telling(row)), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["decode_tokens_per_s"] == 80.4
    assert [each["subject"] for each in printed["warnings"]] == ["studio"]


def test_ps_lists_models_in_memory_and_what_waits(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    row = fleet(queue=(QueueRow(model="big", priority="default", waiting=1, oldest_s=2.0),))
    status.show_loaded(played(telling(row)), with_requests=False, as_json=False)
    text = capsys.readouterr().out
    assert MODEL in text and "Waiting for big (default): 1" in text


def test_ps_lists_each_request_where_wanted(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {
        "id": "req_1",
        "key": "team",
        "model": MODEL,
        "node": None,
        "state": "queued",
        "position": 3,
        "arrived_unix_s": 0.0,
    }
    client = played(telling(fleet(), [request]))
    status.show_loaded(client, with_requests=True, as_json=False)
    assert "queued, place 3" in capsys.readouterr().out
    status.show_loaded(client, with_requests=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["requests"] == [request]
    with pytest.raises(CommandFailed, match="another format"):
        status.show_loaded(
            played(telling(fleet(), [{"id": "req_1"}])), with_requests=True, as_json=False
        )


def test_ps_of_a_fleet_without_loaded_models_says_what_loads_one(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_loaded(played(telling(fleet(loaded=()))), with_requests=False, as_json=False)
    assert "No model is in memory; the first request" in capsys.readouterr().out
