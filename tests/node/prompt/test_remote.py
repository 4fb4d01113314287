"""A render process makes the same prompts, and a template in it can do no harm."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from node.dialects.chat.body import read_chat
from node.errors import BadRequest, ContextTooLong, LoadFailure, NodeError, RendererDied
from node.ipc.child_process import ChildProcess, spawn
from node.parsing.selection import Formats
from node.prompt import process as process_module
from node.prompt.chain_positions import position_tokens
from node.prompt.late_chain import LateChain
from node.prompt.process import RenderLimits
from node.prompt.prompt import RenderRequest
from node.prompt.remote import RemoteRenderer
from node.prompt.renderer import PromptRenderer
from node.prompt.renderers import WORKER_MODULE
from node.protocol.chain.prefix import PrefixHasher, read_fields
from node.protocol.overflow import Overflow
from node.request import Message, TextPart, Tool
from tests.node.prompt.template.samples import OPEN
from tests.node.prompt.words import TEMPLATE, asking, chat, completion, words, words_folder
from tests.node.tokenizers import byte_level, made_folder

WAIT_S = 60.0
pytestmark = pytest.mark.usefixtures("link_bytes")
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LARGE = "{% set text = messages[-1].content * 3000000000 %}"
IF_C = "{% if messages[-1].content == 'c' %}WHAT{% endif %}"
"""Inserted where the last message is `c` alone."""
LITTLE = RenderLimits(template_s=WAIT_S, render_s=WAIT_S, memory_bytes=400 * 1024**2)
"""Little memory, and more time than anything but an endless loop takes under any load."""
BRIEF = RenderLimits(template_s=5.0, render_s=1.5)
"""Little time, and more memory than anything but a large text takes."""
ENDLESS = RenderLimits(render_s=WAIT_S)
REQUEST = RenderRequest(chat(("user", "b")))
PROVOKING = RenderRequest(chat(("user", "c")))


def guarded(what: str) -> str:
    return IF_C.replace("WHAT", what) + TEMPLATE.replace("'c'", "'never'")


class Started:
    """Records the processes that were started."""

    def __init__(self) -> None:
        self.children: list[ChildProcess] = []

    async def __call__(self) -> ChildProcess:
        self.children.append(await spawn(WORKER_MODULE))
        return self.children[-1]


@asynccontextmanager
async def running(
    folder: Path, limits: RenderLimits = LITTLE, formats: Formats | None = None
) -> AsyncIterator[tuple[RemoteRenderer, Started]]:
    started = Started()
    renderer = RemoteRenderer(folder, formats, started, limits)
    try:
        async with asyncio.timeout(WAIT_S):
            yield renderer, started
    finally:
        await renderer.close()
    assert not any(child.alive for child in started.children)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_folder(tmp_path_factory.mktemp("plain"), TEMPLATE)


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_folder(tmp_path_factory.mktemp("looping"), guarded(LOOP))


# --- the same prompts ------------------------------------------------------------------------


async def test_prompts_are_those_of_the_renderer_itself(tmp_path: Path) -> None:
    folder = made_folder(tmp_path, byte_level(), OPEN)
    tool = Tool({"name": "weather", "parameters": {"type": "object", "const": 10**30}})
    messages = (Message("system", "the tool"), Message("user", (TextPart("hello"),)))
    requests = [
        asking(messages=messages, tools=(tool,)),
        asking(messages=(*messages, Message("assistant", "hi", "so")), continue_final=True),
        completion("the weather in Paris"),
        completion((1, 2, 3)),
    ]
    given = Formats("think", "hermes")
    own = PromptRenderer(folder, given)
    async with running(folder, formats=given) as (renderer, _):
        for request in requests:
            assert await renderer.render(RenderRequest(request)) == own.render(request)
            shared = await renderer.render(RenderRequest(request, shared=True))
            assert shared == own.render_shared(request)


async def test_the_positions_of_a_chain_are_returned_with_the_prompt(plain: Path) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a b " * 900}]})
    request = read_chat(body.encode()).request
    chain = PrefixHasher().chain(read_fields(body.encode()), "/v1/chat/completions", "m")
    assert chain is not None
    assert len(chain) > 3
    async with running(plain) as (renderer, _):
        render_request = RenderRequest(request, chain=LateChain(lambda: chain))
        positions = (await renderer.render(render_request)).positions
        assert positions == position_tokens(chain, PromptRenderer(plain).render(request).layout)
        assert positions[-1] > 900
        nothing = replace(render_request, chain=LateChain(lambda: None))
        assert not (await renderer.render(nothing)).positions


async def test_what_cannot_be_made_is_refused_as_the_renderer_does(plain: Path) -> None:
    async with running(plain) as (renderer, started):
        with pytest.raises(BadRequest, match=r"No c, please") as refused:
            await renderer.render(PROVOKING)
        assert refused.value.param == "messages"
        with pytest.raises(ContextTooLong) as too_long:
            await renderer.render(RenderRequest(completion("a b " * 50), 20))
        assert too_long.value.overflow == Overflow(101, 20)
        assert too_long.value.param == "prompt"
        with pytest.raises(NodeError, match="cannot be made") as failed:
            await renderer.render(RenderRequest(completion("\ud800")))
        assert failed.value.status == 500
        assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        assert len(started.children) == 1


# --- templates that go too far ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "limits", "reason"),
    [
        (LOOP, BRIEF, "takes more than 5 s for a few short chats"),
        (LARGE, LITTLE, "takes more than 0.4 GiB of"),
    ],
    ids=["loop", "memory"],
)
async def test_a_template_that_does_not_end_is_no_template(
    tmp_path: Path, what: str, limits: RenderLimits, reason: str
) -> None:
    async with running(words_folder(tmp_path, what + TEMPLATE), limits) as (renderer, started):
        with pytest.raises(LoadFailure, match=reason):
            await renderer.open()
        assert not started.children[0].alive


async def test_a_template_that_has_been_mended_is_read_at_the_next_load(tmp_path: Path) -> None:
    async with running(words_folder(tmp_path, LARGE + TEMPLATE)) as (renderer, _):
        with pytest.raises(LoadFailure):
            await renderer.open()
        words_folder(tmp_path, TEMPLATE)
        await renderer.open()


@pytest.mark.parametrize(
    ("what", "limits", "reason"),
    [
        (LOOP, BRIEF, "takes more than 1.5 s"),
        (LARGE, LITTLE, "takes more than 0.4 GiB of memory"),
    ],
    ids=["loop", "memory"],
)
async def test_a_prompt_that_does_not_end_is_refused_and_the_next_one_is_made(
    tmp_path: Path, what: str, limits: RenderLimits, reason: str
) -> None:
    async with running(words_folder(tmp_path, guarded(what)), limits) as (renderer, started):
        await renderer.open()
        refused = asyncio.create_task(renderer.render(PROVOKING))
        others = [asyncio.create_task(renderer.render(REQUEST)) for _ in range(3)]
        with pytest.raises(BadRequest, match=f"chat template {reason} for this prompt") as caught:
            await refused
        assert caught.value.param == "messages"
        assert [words(await each) for each in others] == ["<user> b <assistant>"] * 3
        assert [child.alive for child in started.children] == [False, True]


async def test_who_leaves_frees_the_process_for_others(
    looping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "ABANDONED_S", 0.2)
    async with running(looping, ENDLESS) as (renderer, started):
        await renderer.open()
        endless = asyncio.create_task(renderer.render(PROVOKING))
        while psutil.Process(started.children[0].process.pid).cpu_percent(0.1) < 10:
            await asyncio.sleep(0)
        endless.cancel()
        assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        assert [child.alive for child in started.children] == [False, True]


async def test_a_client_that_leaves_while_it_waits_costs_nothing(looping: Path) -> None:
    async with running(looping, ENDLESS) as (renderer, started):
        await renderer.open()
        first, second = (asyncio.create_task(renderer.render(REQUEST)) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        assert words(await first) == "<user> b <assistant>"
        assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        assert len(started.children) == 1


async def test_memory_of_a_prompt_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = words_folder(tmp_path, TEMPLATE)
    async with running(folder, RenderLimits(memory_bytes=1)) as (renderer, started):
        # Nothing is looked at that is done at once.
        monkeypatch.setattr(process_module, "POLL_INTERVAL_S", WAIT_S)
        for _ in range(2):
            assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        assert [child.alive for child in started.children] == [False, False]


# --- processes that end ----------------------------------------------------------------------


async def test_a_process_that_dies_is_reported_and_the_next_prompt_has_a_new_one(
    looping: Path,
) -> None:
    async with running(looping, ENDLESS) as (renderer, started):
        await renderer.open()
        dying = asyncio.create_task(renderer.render(PROVOKING))
        await asyncio.sleep(0)
        os.kill(started.children[0].process.pid, signal.SIGKILL)
        with pytest.raises(RendererDied):
            await dying
        assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        os.kill(started.children[1].process.pid, signal.SIGKILL)
        await started.children[1].process.wait()
        assert words(await renderer.render(REQUEST)) == "<user> b <assistant>"
        assert len(started.children) == 3


async def test_a_process_that_sends_an_invalid_response_is_ended(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(plain) as (renderer, started):
        await renderer.open()
        monkeypatch.setattr(process_module, "MAX_RESPONSE_BYTES", 10)
        with pytest.raises(RendererDied):
            await renderer.render(REQUEST)
        assert not started.children[0].alive or await started.children[0].process.wait()


async def test_one_that_cannot_be_started_is_a_failed_load(plain: Path) -> None:
    async def fail() -> ChildProcess:
        raise OSError(12, "Cannot allocate memory")

    renderer = RemoteRenderer(plain, None, fail, LITTLE)
    with pytest.raises(LoadFailure, match="Cannot allocate memory"):
        await renderer.open()
    await renderer.close()


async def test_closing_ends_a_load_that_has_not_ended(plain: Path) -> None:
    async with running(plain) as (renderer, started):
        renderer.begin()
        while not started.children:
            await asyncio.sleep(0)


def test_no_process_outlives_its_agent_whatever_its_template_does(looping: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.node.prompt import test_remote as it\n"
        "async def main():\n"
        "    started = it.Started()\n"
        "    renderer = it.RemoteRenderer(Path(sys.argv[1]), None, started, it.ENDLESS)\n"
        "    await renderer.open()\n"
        "    print(started.children[0].process.pid, flush=True)\n"
        "    await renderer.render(it.PROVOKING)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", script, str(looping)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        while child.cpu_percent(0.1) < 10:
            pass
        owner.kill()
    ended_s = time.monotonic() + WAIT_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < ended_s
        time.sleep(0.01)
