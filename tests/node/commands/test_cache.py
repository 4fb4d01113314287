"""`node-agent cache clear`, with an agent and without."""

import asyncio
import socket
from pathlib import Path

import pytest

from node.engine.cache.disk.folder import FolderLock
from node.engine.scripted.script import Script
from node.protocol.messages import ModelState
from tests.node.commands.running import run_command
from tests.node.serving import running


def stored(home: Path, model: str) -> Path:
    """A file as the disk cache of a model has it."""
    file = home / "kv" / model / "1.safetensors"
    file.parent.mkdir(parents=True)
    FolderLock(file.parent).release()
    file.write_bytes(bytes(20_000_000))
    return file


async def test_without_an_agent_the_files_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(tmp_path, "a")
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(free.getsockname()[1]))
    ended = await run_command(capsys, "cache", "clear", "--yes", "--home", str(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "Freed 0.00 GB of memory and 0.02 GB of disk.\n"
    assert not file.exists()


async def test_with_an_agent_its_engines_forget_and_the_files_of_the_others_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unused, used = stored(tmp_path, "a"), stored(tmp_path, "b")
    async with running(tmp_path) as agent:
        await agent.chat()
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        lock = await asyncio.to_thread(FolderLock, used.parent)
        ended = await run_command(capsys, "cache", "clear", "--yes", "--home", str(tmp_path))
        lock.release()
    assert (ended.code, ended.err) == (0, "")
    assert "0.02 GB of disk" in ended.out
    assert "0.02 GB of disk are not freed: engines of an agent at another address" in ended.out
    assert (unused.exists(), used.exists()) == (False, True)


async def test_reports_that_a_model_is_being_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, Script(load_delay_s=30)) as agent:
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        chat = asyncio.create_task(agent.chat())
        while (await agent.status()).models[0].state is not ModelState.LOADING:
            await asyncio.sleep(0)
        ended = await run_command(capsys, "cache", "clear", "--yes", "--home", str(tmp_path))
        chat.cancel()
    assert ended.out.splitlines()[1].startswith("Not cleared: scripted, being loaded or busy.")


async def test_a_model_is_cleared_alone_and_only_while_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(tmp_path, "a")
    clear = ("cache", "clear", "--yes", "--home", str(tmp_path), "--model")
    async with running(tmp_path) as agent:
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        ended = await run_command(capsys, *clear, "scripted")
        assert ended.code == 1 and "scripted is not loaded" in ended.err
        ended = await run_command(capsys, *clear, "nothing")
        assert ended.code == 1 and "nothing" in ended.err
        await agent.chat()
        ended = await run_command(capsys, *clear, "scripted")
        assert (ended.code, ended.err) == (0, "") and ended.out.startswith("Freed ")
    assert file.exists()


async def test_another_machines_agent_is_not_replaced_by_these_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stored(tmp_path, "a")
    place = ("--home", str(tmp_path), "--url", "http://127.0.0.1:1")
    ended = await run_command(capsys, "cache", "clear", "--yes", *place)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert file.exists()
