"""Tests for router.commands.upgrade.plan, and how a plan is printed."""

import json

import httpx
import pytest

from router.api.admin.report_views import StatusRow
from router.api.admin.views import NodeModel
from router.commands.client import CommandFailed
from router.commands.upgrade import show
from router.commands.upgrade.plan import UpgradePlan, plan_of
from tests.router.commands.status.test_status import Played, fleet, node

MODEL = NodeModel(name="m", state="ready")


def three_nodes() -> StatusRow:
    """A router that is upgraded, and two nodes that are not; one has a model alone."""
    alone = (MODEL, NodeModel(name="alone", state="on_disk"), NodeModel(name="p", state="pulling"))
    return fleet(
        version="0.2.0",
        protocol=7,
        nodes=(
            node("air", version="0.1.0", protocol=6, installed_by="uv tool", models=alone),
            node("mini", version="0.2.0", protocol=7, installed_by="pip", models=(MODEL,)),
            node(
                *("studio",),
                version="0.1.0",
                installed_by="something else",
                models=(MODEL,),
                url="https://studio.local:8801",
            ),
            node("ollama", kind="openai", version="", models=(MODEL,)),
        ),
    )


def steps(plan: UpgradePlan) -> list[str]:
    return [step.node for step in plan.nodes]


def test_the_newest_version_in_the_fleet_is_the_target() -> None:
    plan = plan_of(three_nodes(), "0.2.0")
    assert plan.version == "0.2.0"
    assert plan.router.commands == ()
    assert plan.done == ("mini",)
    assert plan_of(three_nodes(), "0.10.0").version == "0.10.0"


def test_nodes_that_others_stand_in_for_come_first_and_unreachable_ones_last() -> None:
    status = three_nodes()
    assert steps(plan_of(status, "0.2.0")) == ["studio", "air"]
    lost = node("a", reachable=False, version=None, error="Nothing listens there.", models=())
    with_lost = status.model_copy(update={"nodes": (lost, *status.nodes)})
    assert steps(plan_of(with_lost, "0.2.0")) == ["studio", "air", "a"]


def test_a_model_that_only_one_node_serves_is_named() -> None:
    studio, air = plan_of(three_nodes(), "0.2.0").nodes
    assert (studio.only_here, air.only_here) == ((), ("alone",))
    cordoned = [
        row.model_copy(update={"state": "cordoned"} if row.name != "air" else {})
        for row in three_nodes().nodes
    ]
    status = three_nodes().model_copy(update={"nodes": tuple(cordoned)})
    assert plan_of(status, "0.2.0").nodes[-1].only_here == ("m", "alone")


def test_each_step_has_its_commands_in_order() -> None:
    plan = plan_of(three_nodes(), "0.2.0", "0.3.0")
    assert plan.router.commands[0] == "router backup before-upgrade.backup"
    assert "pip install --upgrade" in plan.router.commands[1]
    studio = next(step for step in plan.nodes if step.node == "studio")
    assert studio.commands == (
        "router drain studio --deadline 10m",
        "on studio.local: upgrade mlx-fleet as it was installed",
        "on studio.local: restart `node-agent serve`, or its service",
        "router uncordon studio",
    )
    assert "uv tool upgrade mlx-fleet" in plan.nodes[-1].commands[1]


@pytest.mark.parametrize(
    ("wanted", "words"), [("0.1.0", "older than 0.2.0"), ("newest", "not a version")]
)
def test_a_version_that_cannot_be_the_target_is_refused(
    wanted: str, words: str, played: Played
) -> None:
    client = played(lambda _request: httpx.Response(200, json=three_nodes().model_dump()))
    with pytest.raises(CommandFailed, match=words):
        show.run(client, wanted, as_json=False)


def test_a_plan_is_readable_in_80_columns_and_json(
    played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "own_version", lambda: "0.2.0")
    client = played(lambda _request: httpx.Response(200, json=three_nodes().model_dump()))
    show.run(client, None, as_json=False)
    text = capsys.readouterr().out
    table = text[: text.index("To 0.2.0.")]
    assert max(map(len, table.splitlines())) <= 80
    assert "1. studio. Other nodes serve its models meanwhile." in text
    assert "2. air. No other node serves alone: requests wait or fail meanwhile." in text
    assert "router models pull alone --node NODE" in text
    assert "router upgrade-nodes -- COMMAND" in text
    show.run(client, None, as_json=True)
    plan = json.loads(capsys.readouterr().out)
    assert [each["node"] for each in plan["nodes"]] == ["studio", "air"]
    assert plan["router"]["commands"] == [] and plan["done"] == ["mini"]


def test_a_fleet_of_one_version_has_nothing_to_upgrade(
    played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "own_version", lambda: "1")
    client = played(lambda _request: httpx.Response(200, json=fleet().model_dump()))
    show.run(client, None, as_json=False)
    text = capsys.readouterr().out
    assert "Router and nodes run 1: nothing to upgrade." in text
    assert "`router upgrade-plan --to VERSION`" in text
