"""`node-agent run` beside an agent that runs already, and what it does about a missing model."""

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import typer

from node.commands.agent_client import CommandFailed
from node.commands.run import run as command
from node.commands.run.run import Conversation
from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.messages import ModelState
from node.settings import Settings
from tests.node.commands.running import run_command
from tests.node.models.test_pull import ScriptedHub
from tests.node.serving import RunningAgent, running

SCRIPT = Script(models=(ScriptedModel("org/Tiny"),), text="Hello from here.")


@pytest_asyncio.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningAgent]:
    monkeypatch.setenv("MLX_FLEET_NODE_ENGINE", "scripted")
    monkeypatch.setenv("MLX_FLEET_NODE_SCRIPT", str(tmp_path / "script.json"))
    (tmp_path / "script.json").write_bytes(msgspec.json.encode(SCRIPT))
    async with running(tmp_path, SCRIPT) as agent:
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        yield agent


async def test_a_prompt_has_one_response_of_the_agent_that_runs(
    agent: RunningAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = await run_command(capsys, "run", "tiny", "Good", "morning", "--home", str(tmp_path))
    assert (ended.code, ended.out) == (0, "Hello from here.\n")
    (model,) = (await agent.status()).models
    assert model.state is ModelState.READY


async def test_text_on_standard_input_is_the_prompt(
    agent: RunningAgent,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Good morning\n"))
    ended = await run_command(capsys, "run", "tiny", "--home", str(tmp_path))
    assert (ended.code, ended.out) == (0, "Hello from here.\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    ended = await run_command(capsys, "run", "tiny", "--home", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert "There is no prompt" in ended.err


async def test_an_agent_elsewhere_is_named_and_pulls_nothing(
    agent: RunningAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
    ended = await run_command(capsys, "run", "tiny", "hi", *place)
    assert (ended.code, ended.out) == (0, "Hello from here.\n")
    ended = await run_command(capsys, "run", "x/zebra", "hi", *place)
    assert (ended.code, ended.out) == (1, "")
    assert "has no model x/zebra. Pull it there first." in ended.err


async def test_a_failed_load_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, Script(load_failure="the file is torn")) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        ended = await run_command(capsys, "run", "scripted", "hi", *place)
    assert (ended.code, ended.out) == (1, "")
    assert "the file is torn" in ended.err.splitlines()[-1]


async def test_a_name_without_an_owner_is_not_looked_up_at_the_hub(
    agent: RunningAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = await run_command(capsys, "run", "tinny", "hi", "--home", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert "no model tinny on this node. Did you mean org/Tiny? `node-agent search" in ended.err


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedHub:
    """A hub with org/tiny; this node's store is empty, and no agent is started."""
    hub = ScriptedHub()
    monkeypatch.setattr(command, "open_hub", lambda: hub)
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))
    monkeypatch.setenv("MLX_FLEET_NODE_MEMORY_LIMIT_BYTES", "16GB")

    def no_agent(_settings: object) -> None:
        raise CommandFailed("No agent is started here.")

    monkeypatch.setattr(command, "own_agent", no_agent)
    return hub


async def test_a_missing_model_is_pulled_with_yes(
    hub: ScriptedHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = await run_command(capsys, "run", "org/tiny", "hi")
    assert ended.code == 1
    assert "org/tiny is not on this node; --yes pulls it (0.0 GB)" in ended.err
    assert hub.downloads == 0
    ended = await run_command(capsys, "run", "org/tiny", "hi", "--yes")
    assert "No agent is started here." in ended.err
    assert (tmp_path / "node" / "models" / "org--tiny" / "model.safetensors").exists()
    hub.planned.clear()
    # It is here now.
    for name in ("tiny", "org/Tiny"):
        ended = await run_command(capsys, "run", name, "hi")
        assert "No agent is started here." in ended.err
    assert hub.planned == []
    # That may be another model of the hub.
    ended = await run_command(capsys, "run", "org/tin", "hi")
    assert [each.repo_id for each in hub.planned] == ["org/tin"]


def test_in_a_terminal_it_asks_first(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def no(question: str, **_options: object) -> None:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    settings = Settings(home=tmp_path / "node")
    with pytest.raises(typer.Abort):
        command.run(settings, Conversation("org/tiny", "hi"))
    assert asked == ["org/tiny is not on this node. Pull 0.0 GB from the hub?"]
    assert hub.downloads == 0


async def test_a_model_that_is_too_large_is_not_pulled(
    hub: ScriptedHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLX_FLEET_NODE_MEMORY_LIMIT_BYTES", "100MB")
    ended = await run_command(capsys, "run", "org/tiny", "hi", "--yes")
    assert (ended.code, hub.downloads) == (1, 0)
    assert "too large for the 0.1 GiB that models may take" in ended.err


async def test_a_damaged_model_is_named_with_what_to_do(
    hub: ScriptedHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "node" / "models" / "org--tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    ended = await run_command(capsys, "run", "org/tiny", "hi", "--yes")
    assert (ended.code, hub.planned) == (1, [])
    assert "org/tiny cannot be served: " in ended.err
    assert "node-agent rm org/tiny" in ended.err
