"""`node-agent ps` beside a running agent."""

import asyncio
import json
from pathlib import Path

import pytest

from node.commands.residency.ps import loaded_model
from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.messages import ModelState, ModelStatus
from tests.node.commands.running import run_command
from tests.node.serving import running

TWO = Script(models=(ScriptedModel(), ScriptedModel("org/other")))


async def test_lists_what_is_in_memory_and_when_it_is_unloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    async with running(tmp_path, TWO) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        ended = await run_command(capsys, "ps", *place)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("No model is loaded; ")
        assert json.loads((await run_command(capsys, "ps", "--json", *place)).out) == []
        await agent.chat()
        ended = await run_command(capsys, "ps", *place)
        head, row, total = ended.out.splitlines()
        assert head.split() == ["model", "state", "memory", "stored", "KV", "requests", "unloaded"]
        assert row.split()[:2] == ["scripted", "ready"]
        assert "in 59 min" in row or "in 1 h" in row
        assert total.endswith("for models are in use, without stored KV.")
        (shown,) = json.loads((await run_command(capsys, "ps", "--json", *place)).out)
        assert (shown["name"], shown["requests"], shown["pinned"]) == ("scripted", 0, False)
        assert 3590 < shown["unload_in_s"] <= 3600


async def test_shows_the_progress_of_a_load_and_why_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(load_failure="no such weights")
    async with running(tmp_path, script) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        assert (await agent.chat()).status_code == 503
        ended = await run_command(capsys, "ps", *place)
        assert "scripted could not be loaded: " in ended.out
        assert "no such weights" in ended.out
    async with running(tmp_path, Script(load_delay_s=30)) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        chat = asyncio.create_task(agent.chat())
        while (await agent.status()).models[0].state is not ModelState.LOADING:
            await asyncio.sleep(0)
        ended = await run_command(capsys, "ps", *place)
        chat.cancel()
    assert ended.out.splitlines()[1].split()[:3] == ["scripted", "loading", "0%"]


async def test_without_an_agent_it_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--home", str(tmp_path), "--url", "http://127.0.0.1:1")
    ended = await run_command(capsys, "ps", *place)
    assert (ended.code, ended.out) == (1, "")
    assert "node-agent serve" in ended.err


def test_a_model_that_is_pinned_or_in_use_is_not_about_to_be_unloaded() -> None:
    model = ModelStatus("m", ModelState.READY, 5, idle_s=40.0, keep_alive_s=60.0)
    assert loaded_model(model).unload_in_s == 20.0
    kept = ModelStatus("m", ModelState.READY, 5, idle_s=40.0, keep_alive_s=60.0, pinned=True)
    assert (loaded_model(kept).unload_in_s, loaded_model(kept).keep_alive_s) == (None, None)
    used = ModelStatus("m", ModelState.READY, 5, leases=2, keep_alive_s=60.0)
    assert (loaded_model(used).unload_in_s, loaded_model(used).requests) == (None, 2)
