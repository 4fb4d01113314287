"""One render process for each model, as many as are useful."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.errors import LoadFailure
from node.prompt import renderers as module
from node.prompt.prompt import RenderRequest
from node.prompt.renderers import Renderers
from tests.node.prompt.words import TEMPLATE, chat, completion, words, words_folder

WAIT_S = 60.0
REQUEST = RenderRequest(chat(("user", "b")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_folder(tmp_path_factory.mktemp("model"), TEMPLATE)


def processes() -> set[int]:
    """Returns the render processes of this agent."""
    children = psutil.Process().children()
    return {child.pid for child in children if module.WORKER_MODULE in child.cmdline()}


@asynccontextmanager
async def running(**fields: Any) -> AsyncIterator[Renderers]:
    renderers = Renderers(**fields)
    try:
        async with asyncio.timeout(WAIT_S):
            yield renderers
    finally:
        await renderers.close()
    assert processes() == set()


async def test_a_folder_is_loaded_once_and_its_failure_is_tried_again(
    folder: Path, tmp_path: Path
) -> None:
    async with running() as renderers:
        await asyncio.gather(renderers.ready(folder), renderers.ready(folder))
        assert len(processes()) == 1
        for _ in range(2):
            with pytest.raises(LoadFailure, match="cannot be loaded"):
                await renderers.ready(tmp_path)
        words_folder(tmp_path, TEMPLATE)
        await renderers.ready(tmp_path)
        assert words(await renderers.render(tmp_path, REQUEST)) == "<user> b <assistant>"


async def test_one_that_stops_waiting_does_not_cancel_the_load(folder: Path) -> None:
    async with running() as renderers:
        renderers.begin(folder)
        waiting = asyncio.create_task(renderers.ready(folder))
        await asyncio.wait({waiting}, timeout=0)
        waiting.cancel()
        await renderers.ready(folder)
        assert len(processes()) == 1


async def test_a_scripted_model_needs_no_process() -> None:
    async with running() as renderers:
        renderers.begin(Path())
        await renderers.ready(Path())
        assert len((await renderers.render(Path(), RenderRequest(completion("abcd")))).tokens) == 1
        assert processes() == set()


async def test_the_least_recently_used_process_ends_unless_its_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    loaded = 0
    first, second, third = (
        words_folder(tmp_path / name, TEMPLATE) for name in ("first", "second", "third")
    )
    async with running(loaded=lambda: loaded) as renderers:
        for each in (first, second, first):
            await renderers.ready(each)
        before = processes()
        await renderers.ready(third)
        assert len(processes()) == 2
        assert len(processes() & before) == 1
        loaded = 3
        await renderers.ready(second)
        assert len(processes()) == 3
        assert words(await renderers.render(first, REQUEST)) == "<user> b <assistant>"


async def test_one_is_started_ahead_while_there_is_a_model_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPARE_S", 0.0)
    models = 1
    async with running(models=lambda: models) as renderers:
        renderers.keep_spare()
        # A process has no command line for a moment after its program has begun.
        while renderers._spare._ready is None or not (waiting := processes()):
            await asyncio.sleep(0)
        await renderers.ready(folder)
        # All models have one.
        assert processes() == waiting
        models = 2
        renderers.keep_spare()
        while len(processes()) < 2:
            await asyncio.sleep(0)
