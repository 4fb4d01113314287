"""Renderers are loaded once, and long prompts hold up nobody."""

import asyncio
import threading
from pathlib import Path

import pytest

from node.errors import LoadFailure
from node.prompts import renderers as module
from node.prompts.prompt import Prompt, RenderRequest
from node.prompts.renderer import PromptRenderer
from node.prompts.renderers import Renderers
from node.prompts.scripted import ScriptedRenderer
from node.request import Message, TextRequest, Tool
from tests.node.prompts.words import TEMPLATE, asking, chat, completion, words_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_folder(tmp_path_factory.mktemp("model"), TEMPLATE)


async def test_a_folder_is_loaded_once_and_its_failure_is_tried_again(
    folder: Path, tmp_path: Path
) -> None:
    renderers = Renderers()
    first, second = await asyncio.gather(renderers.get(folder), renderers.get(folder))
    assert first is second
    for _ in range(2):
        with pytest.raises(LoadFailure, match="cannot be loaded"):
            await renderers.get(tmp_path)
    words_folder(tmp_path, TEMPLATE)
    assert isinstance(await renderers.get(tmp_path), PromptRenderer)
    assert isinstance(await renderers.get(Path()), ScriptedRenderer)


async def test_one_that_stops_waiting_does_not_cancel_the_load(folder: Path) -> None:
    renderers = Renderers()
    renderers.begin(folder)
    waiting = asyncio.create_task(renderers.get(folder))
    await asyncio.wait({waiting}, timeout=0)
    waiting.cancel()
    assert isinstance(await renderers.get(folder), PromptRenderer)


LONG = module.THREAD_LENGTH + 1


@pytest.mark.parametrize(
    ("request_", "in_thread"),
    [
        (completion("x" * 10), False),
        (completion("x" * LONG), True),
        (chat(("user", "x" * 10)), False),
        (chat(("user", "x" * LONG)), True),
        (chat(*[("user", "")] * (LONG // module.MESSAGE_LENGTH + 1)), True),
        (asking(messages=(Message("user", "x"),), tools=(Tool({"name": "f"}),)), True),
        (asking(messages=(Message("assistant", "x", "x" * LONG),)), True),
    ],
    ids=[
        *("short text", "long text", "short chat", "long chat", "many empty messages"),
        *("tools", "long reasoning"),
    ],
)
async def test_long_prompts_are_rendered_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, request_: TextRequest, *, in_thread: bool
) -> None:
    threads: list[str] = []

    def recording(_self: ScriptedRenderer, _request: TextRequest, _context: int | None) -> Prompt:
        threads.append(threading.current_thread().name.partition("_")[0])
        return Prompt((1,))

    monkeypatch.setattr(ScriptedRenderer, "render", recording)
    renderers = Renderers()
    assert await renderers.render(Path(), RenderRequest(request_)) == Prompt((1,))
    renderers.close()
    assert threads == ["render" if in_thread else threading.current_thread().name]


async def test_nothing_else_waits_for_long_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()

    def slow(_self: ScriptedRenderer, _request: TextRequest, _context: int | None) -> Prompt:
        assert ending.wait(10)
        return Prompt((1,))

    monkeypatch.setattr(ScriptedRenderer, "render", slow)
    renderers = Renderers()
    many = [renderers.render(Path(), RenderRequest(completion("x" * LONG))) for _ in range(64)]
    waiting = asyncio.gather(*many)
    async with asyncio.timeout(10):
        # More of them than there are threads of any kind.
        assert await asyncio.to_thread(lambda: "soon") == "soon"
        assert not waiting.done()
        ending.set()
        assert await waiting == [Prompt((1,))] * 64
    renderers.close()
