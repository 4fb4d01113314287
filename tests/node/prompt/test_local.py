"""Long prompts of scripted models delay no other request."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from node.dialects.chat.body import read_chat
from node.errors import TooManyWaiting
from node.prompt import local as module
from node.prompt.chain_positions import position_tokens
from node.prompt.late_chain import LateChain
from node.prompt.length import MESSAGE_LENGTH
from node.prompt.local import LocalRenderer
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.scripted_tokens import ScriptedRenderer
from node.protocol.chain.prefix import PrefixHasher, read_fields
from node.request import Message, TextRequest
from serving.fair_shares import FairShares
from tests.node.prompt.words import asking, chat, completion

THREADS = 4
LONG = module.THREAD_LENGTH + 1


@pytest.fixture
def renderer() -> Iterator[LocalRenderer]:
    with ThreadPoolExecutor(THREADS, thread_name_prefix="render") as threads:
        yield LocalRenderer(None, threads, FairShares(THREADS, TooManyWaiting))


@pytest.mark.parametrize(
    ("request_", "in_thread"),
    [
        (completion("x" * 10), False),
        (completion("x" * LONG), True),
        (chat(("user", "x" * 10)), False),
        (chat(("user", "x" * LONG)), True),
        (chat(*[("user", "")] * (LONG // MESSAGE_LENGTH + 1)), True),
        (asking(messages=(Message("assistant", "x", "x" * LONG),)), True),
    ],
    ids=[
        *("short text", "long text", "short chat", "long chat", "many empty messages"),
        "long reasoning",
    ],
)
async def test_long_prompts_are_made_in_a_thread(
    renderer: LocalRenderer,
    monkeypatch: pytest.MonkeyPatch,
    request_: TextRequest,
    *,
    in_thread: bool,
) -> None:
    threads: list[str] = []

    def recording(_self: ScriptedRenderer, _request: TextRequest, _context: int | None) -> Prompt:
        threads.append(threading.current_thread().name.partition("_")[0])
        return Prompt((1,))

    monkeypatch.setattr(ScriptedRenderer, "render", recording)
    assert await renderer.render(RenderRequest(request_)) == Prompt((1,))
    assert threads == ["render" if in_thread else threading.current_thread().name]


async def test_nothing_else_waits_for_long_prompts_and_no_caller_has_all_threads(
    renderer: LocalRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Event()

    def slow(_self: ScriptedRenderer, request: TextRequest, _context: int | None) -> Prompt:
        assert request.max_tokens or ending.wait(10)
        return Prompt((1,))

    monkeypatch.setattr(ScriptedRenderer, "render", slow)
    long = completion("x" * LONG)
    many = [renderer.render(RenderRequest(long, caller="a")) for _ in range(64)]
    waiting = asyncio.gather(*many)
    async with asyncio.timeout(10):
        # More of them than there are threads of any kind.
        assert await asyncio.to_thread(lambda: "soon") == "soon"
        others = completion("x" * LONG, max_tokens=1)
        assert await renderer.render(RenderRequest(others, caller="b")) == Prompt((1,))
        assert not waiting.done()
        ending.set()
        assert await waiting == [Prompt((1,))] * 64


@pytest.mark.parametrize("length", [100, LONG])
async def test_the_positions_of_a_chain_are_returned_with_the_prompt(
    renderer: LocalRenderer, length: int
) -> None:
    messages = [{"role": "user", "content": "x" * length}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    request = read_chat(body).request
    chain = PrefixHasher().chain(read_fields(body), "/v1/chat/completions", "m")
    assert chain is not None
    render_request = RenderRequest(request, chain=LateChain(lambda: chain))
    prompt = await renderer.render(render_request)
    assert prompt.positions == position_tokens(chain, ScriptedRenderer().render(request).layout)
    assert prompt.positions[-1] == length // 4
    assert not (await renderer.render(RenderRequest(request))).positions
