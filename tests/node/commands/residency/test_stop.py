"""`node-agent stop` beside a running agent."""

import asyncio
from pathlib import Path

import pytest

from node.commands.residency import stop as command
from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.messages import ModelState
from tests.node.commands.running import run_command
from tests.node.serving import running

TWO = Script(models=(ScriptedModel(), ScriptedModel("org/Other")))


async def test_unloads_a_model_by_its_name_or_the_part_after_the_slash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, TWO) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        await agent.chat()
        await agent.chat(model="org/Other")
        for name, whole in (("scripted", "scripted"), ("other", "org/Other")):
            ended = await run_command(capsys, "stop", name, *place)
            assert (ended.code, ended.err) == (0, "")
            assert ended.out.startswith(f"{whole} is unloaded; ")
        assert {each.state for each in (await agent.status()).models} == {ModelState.ON_DISK}


async def test_says_what_is_wrong_with_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, TWO) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        await agent.chat()
        ended = await run_command(capsys, "stop", "other", *place)
        assert (ended.code, ended.out) == (1, "")
        assert "other is not loaded; `node-agent ps`" in ended.err
        ended = await run_command(capsys, "stop", "scriptd", *place)
        assert "no model scriptd on this node. Did you mean scripted?" in ended.err
    ended = await run_command(capsys, "stop", "scripted", *place)
    assert (ended.code, "node-agent serve" in ended.err) == (1, True)


async def test_a_model_in_use_is_left_alone_or_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with running(tmp_path, Script(token_interval_s=30)) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        chat = asyncio.create_task(agent.chat())
        await agent.until_active()
        ended = await run_command(capsys, "stop", "scripted", *place)
        assert (ended.code, ended.out) == (1, "")
        assert "still serves 1 requests" in ended.err
        assert "--wait" in ended.err
        tries: list[float] = []

        def end_chat(pause_s: float) -> None:
            tries.append(pause_s)
            loop.call_soon_threadsafe(chat.cancel)

        monkeypatch.setattr(command, "sleep", end_chat)
        ended = await run_command(capsys, "stop", "scripted", "--wait", *place)
        assert (ended.code, bool(tries)) == (0, True)
        assert (await agent.status()).models[0].state is ModelState.ON_DISK


async def test_a_pinned_model_is_unloaded_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, pins=("scripted",)) as agent:
        place = ("--home", str(tmp_path), "--url", f"http://127.0.0.1:{agent.port}")
        async with asyncio.timeout(30):
            while (await agent.status()).models[0].state is not ModelState.READY:
                await asyncio.sleep(0.01)
        ended = await run_command(capsys, "stop", "scripted", *place)
    assert (ended.code, "will be loaded again" in ended.out) == (0, True)
