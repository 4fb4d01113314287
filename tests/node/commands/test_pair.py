"""`node-agent pair` and `unpair`, beside a running agent."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from node.commands import pairing_lines
from node.protocol.pairing import Code
from tests.node.commands.running import run_command
from tests.node.serving import RunningAgent, running

Capture = pytest.CaptureFixture[str]


@pytest_asyncio.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningAgent]:
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))
    async with running(tmp_path / "node", host="0.0.0.0") as agent:
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        yield agent


async def test_a_new_code_is_shown_in_a_terminal(
    agent: RunningAgent, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing_lines, "own_name", lambda: "studio.local")
    monkeypatch.setattr(pairing_lines, "own_ipv4", lambda: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ended = await run_command(capsys, "pair")
    assert (ended.code, ended.err) == (0, "")
    line = ended.out.splitlines()[1]
    start = f"  router add-node https://studio.local:{agent.port} --code "
    assert line.startswith(start)
    assert Code.read(line.removeprefix(start)) == agent.app.desk.codes.begin_try()


async def test_elsewhere_it_is_printed_only_if_that_is_asked_for(
    agent: RunningAgent, capsys: Capture
) -> None:
    ended = await run_command(capsys, "pair")
    assert (ended.code, ended.out) == (1, "")
    assert "ssh -t" in ended.err
    ended = await run_command(capsys, "pair", "--json")
    found = json.loads(ended.out)
    assert Code.read(found["code"]) == agent.app.desk.codes.begin_try()
    assert found["valid_s"] == 600


async def test_routers_are_listed_and_removed(agent: RunningAgent, capsys: Capture) -> None:
    pairings = agent.app.desk.pairings
    ended = await run_command(capsys, "unpair")
    assert "No router is paired" in ended.out
    for router_id, name in (("r1", "desk"), ("r2", "lab"), ("r3", "shed")):
        await pairings.add(router_id, name)
    ended = await run_command(capsys, "unpair")
    assert [word in ended.out for word in ("desk", "lab", "shed", "r2")] == [True] * 4
    ended = await run_command(capsys, "unpair", "--json")
    assert [row["name"] for row in json.loads(ended.out)] == ["desk", "lab", "shed"]
    ended = await run_command(capsys, "unpair", "lab")
    assert "The pairing with lab has ended" in ended.out
    assert [each.name for each in pairings.list()] == ["desk", "shed"]
    ended = await run_command(capsys, "unpair", "lab")
    assert ended.code == 1
    assert "No router 'lab' is paired" in ended.err
    ended = await run_command(capsys, "unpair", "lab", "--all")
    assert ended.code == 2
    ended = await run_command(capsys, "unpair", "--all")
    assert "The pairing with all routers has ended" in ended.out
    assert pairings.list() == ()


async def test_without_an_agent_the_commands_say_how_to_start_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))
    monkeypatch.setenv("MLX_FLEET_NODE_PORT", "1")
    for verb in ("pair", "unpair"):
        ended = await run_command(capsys, verb, "--json")
        assert ended.code == 1
        assert "node-agent serve" in ended.err
