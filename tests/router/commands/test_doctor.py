"""`router doctor`, with a router that is played."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.commands import doctor
from router.commands.client import AdminClient, RouterAccess
from router.commands.doctor import can_connect
from serving.unreached import LOCAL_NETWORK, Cause
from tests.router.commands.conftest import Handler, sending

Played = Callable[[Handler], AdminClient]


OWN = [{"check": "registry", "level": "ok", "message": "It is intact."}]


def check(node: str = "studio", **fields: Any) -> dict[str, Any]:
    return {
        "node": node,
        "url": f"http://{node}.local:8801",
        "level": "ok",
        "finding": "ok",
        "message": "It responds: M4 Max, mlx-fleet 0.1.0.",
        "addresses": ["192.168.1.7"],
        "took_s": 0.01,
        **fields,
    }


def answering(*checks: dict[str, Any]) -> Handler:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/admin/check":
            return httpx.Response(200, json=OWN)
        assert (request.method, request.url.path) == ("POST", "/admin/nodes/check")
        return httpx.Response(200, json=checks)

    return answer


UNREACHED = check("mini", level="fail", finding=Cause.NO_ROUTE, message="There is no way to it.")


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the URLs that are connected to, all of them with success."""
    called: list[str] = []

    def reach(url: str) -> bool:
        called.append(url)
        return True

    monkeypatch.setattr(doctor, "can_connect", reach)
    return called


def test_nodes_that_answer_are_one_line_each(
    played: Played, capsys: pytest.CaptureFixture[str], reached: list[str]
) -> None:
    warned = check("air", level="warn", message="It runs 0.2.")
    assert doctor.run(played(answering(check(), warned)), as_json=False)
    text = capsys.readouterr().out
    assert "studio" in text and "It responds: M4 Max" in text and "It runs 0.2." in text
    assert "Tried" not in text
    assert reached == []


def test_a_node_that_only_the_command_reaches_is_a_matter_of_the_local_network(
    played: Played, capsys: pytest.CaptureFixture[str], reached: list[str]
) -> None:
    assert not doctor.run(played(answering(check(), UNREACHED)), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "There is no way to it. Tried: 192.168.1.7. This command reaches it" in text
    assert "Local Network" in text
    assert reached == ["http://mini.local:8801"]


def test_the_setting_is_named_once(
    played: Played, capsys: pytest.CaptureFixture[str], reached: list[str]
) -> None:
    finding = {**UNREACHED, "finding": Cause.LOCAL_NETWORK, "message": f"No. {LOCAL_NETWORK}"}
    doctor.run(played(answering(finding)), as_json=False)
    assert capsys.readouterr().out.count("System Settings") == 1


def test_a_router_elsewhere_is_compared_with_nothing(
    capsys: pytest.CaptureFixture[str], reached: list[str]
) -> None:
    place = RouterAccess("http://hub.local:8800", key="k")
    client = AdminClient(place, sending(answering(UNREACHED)))
    assert not doctor.run(client, as_json=False)
    assert reached == []
    assert "This command can_connect" not in capsys.readouterr().out


def test_for_scripts_all_of_it_is_json(
    played: Played, capsys: pytest.CaptureFixture[str], reached: list[str]
) -> None:
    assert not doctor.run(played(answering(check(), UNREACHED)), as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert rows == {
        "router": OWN,
        "nodes": [
            {**check(), "reached_from_here": None},
            {**UNREACHED, "reached_from_here": True},
        ],
    }


def test_a_router_that_is_not_well_is_shown_and_fails(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = [{"check": "registry", "level": "fail", "message": "It is damaged."}]

    def answer(request: httpx.Request) -> httpx.Response:
        own = request.url.path == "/admin/check"
        return httpx.Response(200, json=damaged if own else [check()])

    assert not doctor.run(played(answer), as_json=False)
    text = capsys.readouterr().out
    assert "It is damaged." in text and "It responds: M4 Max" in text


def test_an_empty_fleet_names_the_next_step(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.run(played(answering()), as_json=False)
    assert "router add-node" in capsys.readouterr().out


def test_a_port_is_reached_or_it_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert can_connect(url)
    assert not can_connect(url)
