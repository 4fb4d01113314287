"""Tests that a real engine reuses the prefixes that its node reports."""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from node.ipc.messages import CacheEvent, DiskCache
from node.prefixes.digest import PrefixDigest
from node.protocol.chain.prefix import Chain
from node.protocol.prefixes import Tier
from tests.mlx.driver import Driver, make_spec, prompt
from tests.mlx.kinds import make_kind
from tests.node.engine.cache.fake_parts import evict
from tests.node.listening import PAUSE_S, WAIT_S, Conversation, Listener, Mirror, user
from tests.node.serving import running

pytestmark = pytest.mark.mlx

STORY = (
    "A small ship left the harbour at dawn, and nobody on the quay knew where it was going. The "
    "baker said north, the smith said south; the children, who had asked the sailors, said nothing."
)
TURNS = ("Where did it go?", "Who knew? " + STORY, "Why?", "And then? " * 20, "Is that all?")


@pytest.mark.timeout(240)
async def test_a_session_reuses_what_was_reported_and_little_more(
    smollm2: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {
        "engine": "text",
        "script": None,
        "models": (smollm2,),
        "served_model_names": ("m",),
        "kv_disk_bytes": 0,
        "memory_limit_bytes": 3 << 30,
    }
    async with running(tmp_path, **fields) as agent, Listener(agent, "m") as listener:
        messages: Conversation = [{"role": "system", "content": STORY}]
        for turn, text in enumerate(TURNS):
            messages.append(user(text))
            predicted, cached, answer = await listener.ask(messages)
            assert predicted <= cached <= predicted + 16
            assert (predicted > 0) == (turn > 0)
            messages.append({"role": "assistant", "content": answer})


async def until_loaded(listener: Listener) -> None:
    """Loads the model, and waits until what is on disk is reported."""
    await listener.agent.app.agent.load("m")
    async with asyncio.timeout(WAIT_S):
        while not listener.mirror.values:
            await asyncio.sleep(PAUSE_S)
    await listener.until_reported()


def on_disk(mirror: Mirror) -> dict[int, int]:
    """The usable tokens of all positions, all of which are on disk."""
    assert {value & 1 for value in mirror.values.values()} <= {Tier.DISK}
    return {hash_: value >> 1 for hash_, value in mirror.values.items()}


async def session_over_restarts(
    folder: Path, home: Path, *, lives: int, with_answers: bool
) -> None:
    fields: dict[str, Any] = {
        "engine": "text",
        "script": None,
        "models": (folder,),
        "served_model_names": ("m",),
        "kv_disk_bytes": 1 << 30,
        "memory_limit_bytes": 3 << 30,
    }
    messages: Conversation = [{"role": "system", "content": STORY}]
    before: dict[int, int] = {}
    for life in range(lives):
        async with running(home, **fields) as agent, Listener(agent, "m") as listener:
            if life:
                await until_loaded(listener)
                assert on_disk(listener.mirror) == before
            for text in TURNS[2 * life : 2 * life + 2]:
                messages.append(user(text))
                predicted, cached, answer = await listener.ask(messages)
                assert predicted <= cached
                assert (predicted > 0) == (len(messages) > 2)
                if with_answers:
                    messages.append({"role": "assistant", "content": answer})
            before = {hash_: value >> 1 for hash_, value in listener.mirror.values.items()}


@pytest.mark.timeout(240)
async def test_a_session_is_reported_after_a_restart_and_goes_on_from_disk(
    smollm2: Path, tmp_path: Path
) -> None:
    await session_over_restarts(smollm2, tmp_path, lives=2, with_answers=True)


@pytest.mark.parametrize(("name", "lives"), [("llama", 3), ("falcon_h1", 2)])
async def test_a_cache_is_reported_after_each_restart_as_it_was_before(
    name: str, lives: int, tmp_path: Path
) -> None:
    # These models' answers are not spelled as they were generated.
    folder = make_kind(name, tmp_path / "model")
    await session_over_restarts(folder, tmp_path / "home", lives=lives, with_answers=False)


def test_what_any_kind_of_cache_has_on_disk_is_reported_again_and_reused(
    kind: Path, tmp_path: Path
) -> None:
    spec = make_spec(kind, disk=DiskCache(str(tmp_path), max_bytes=1 << 30))
    tokens, ends = prompt(120, 1), [40, 100]
    with Driver(kind, spec=spec) as engine:
        digest = PrefixDigest(snapshot_only=engine.engine.info.snapshot_only)
        digest.on_request("a", _chain_of(2), ends, len(tokens))
        engine.submit("a", tokens, max_tokens=12, boundaries=tuple(ends))
        engine.run()
        digest.on_events(engine.call(engine.engine.take_cache_events))
        digest.on_response("a", _chain_of(3), None)
        tokens = (*tokens, *engine.outputs["a"], *prompt(60, 2))
        digest.on_events(engine.call(lambda: _flushed(engine)))
        before = [digest.entry(hash_) for hash_ in (1, 2, 3)]
        saved = digest.saved()
    with Driver(kind, spec=spec) as engine:
        digest = PrefixDigest(snapshot_only=engine.engine.info.snapshot_only)
        digest.on_events(engine.call(engine.engine.take_cache_events))
        files = digest.files()
        for each in saved:
            digest.restore(files[each.file], each)
        assert [digest.entry(hash_) for hash_ in (1, 2, 3)] == before
        last = before[-1]
        assert last is not None and last.tier is Tier.DISK and last.usable_tokens > 100
        engine.submit("b", tokens, max_tokens=2)
        engine.run()
        usage = engine.rows["b"].usage
        assert usage is not None and usage.cached_tokens >= last.usable_tokens


def _flushed(engine: Driver) -> tuple[CacheEvent, ...]:
    """Has all that is stored on disk only; the events."""
    reuse = engine.engine._reuse
    assert reuse.tier is not None
    reuse.cache.flush()
    reuse.tier.flush(30)
    reuse.poll()
    evict(reuse.cache, 1 << 40)
    return reuse.events()


def test_what_is_reported_of_any_kind_of_cache_is_what_is_reused(kind: Path) -> None:
    with Driver(kind) as engine:
        digest = PrefixDigest(snapshot_only=engine.engine.info.snapshot_only)
        tokens, ends = prompt(120, 1), [40, 100]
        for turn in range(5):
            uid, chain = f"{turn}", _chain_of(len(ends))
            known = [entry for each in chain.hashes if (entry := digest.entry(each))]
            reported = known[-1].usable_tokens if known else 0
            digest.on_request(uid, chain, ends, len(tokens))
            engine.submit(uid, tokens, max_tokens=12, boundaries=tuple(ends))
            engine.run()
            usage = engine.rows[uid].usage
            assert usage is not None and reported <= usage.cached_tokens <= reported + 16
            assert (reported > 0) == (turn > 0)
            digest.on_events(engine.call(engine.engine.take_cache_events))
            digest.on_response(uid, _chain_of(len(ends) + 1), None)
            digest.on_end(uid)
            answered = (*tokens, *engine.outputs[uid])
            tokens = (*answered, *prompt(60, turn + 2))
            ends += [len(answered), len(tokens) - 5]


def _chain_of(length: int) -> Chain:
    """Returns a chain of so many positions, whose hashes are 1, 2, 3 …"""
    hashes = array("Q", range(1, length + 1))
    return Chain(hashes, array("I", range(1, length + 1)), array("I"), 0)
