"""Tests that a router that follows a node's events knows the prefixes that the node has cached."""

import asyncio
import random
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.agent import prefixes as prefixes_module
from node.agent.events import EventHub
from node.agent.prefixes import PrefixFeed
from node.dialects.chat.body import read_chat
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from node.ipc.messages import CacheEvent, CacheEventKind, Loaded
from node.models.store import ModelEntry
from node.prompt.late_chain import LateChain
from node.protocol.chain.prefix import (
    Chain,
    OutputText,
    ResponseOutput,
    chain_with_output,
    read_fields,
)
from node.protocol.headers import HEADER_ORIGIN, HEADER_REQUEST_ID
from node.protocol.messages import NodeStatus, StatusEvent
from tests.node.listening import WAIT_S, Listener, Mirror, follow, user
from tests.node.serving import chat_body, closed, running

STATUS = StatusEvent(NodeStatus(1, "n", "i", "0", "scripted", "chip", 0, 0, ()))
INFO = Loaded(0, 1000, 4, 100)
MODEL = ModelEntry("m", Path(), 0, 1000, 0)
CACHE = Script(
    models=(ScriptedModel(kv_bytes_per_token=10),), cache=ScriptedCache(capacity_tokens=10_000)
)


class World:
    """A feed with a model whose cache changes at random; each prompt is an entry of its own."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.hub = EventHub()
        self.feed = PrefixFeed(self.hub)
        self.entry = 0
        self.live: list[int] = []
        self.feed.on_loaded(MODEL, INFO)

    def change(self) -> None:
        if self.live and self.draw.random() < 0.4:
            gone = self.live.pop(self.draw.randrange(len(self.live)))
            event = CacheEvent(CacheEventKind.EVICTED, gone, 0, 0, 0, 0)
        else:
            self.entry += 1
            self.live.append(self.entry)
            hashes = array("Q", [self.draw.randrange(400) for _ in range(5)])
            digest = self.feed.digest("m")
            assert digest is not None
            digest.on_request("r", Chain(hashes, hashes, hashes, 0), range(5), 10)
            event = CacheEvent(CacheEventKind.STORED, self.entry, 0, 0, 9, 9, "r")
        self.feed.on_cache_events("m", (event,))

    def reload(self) -> None:
        self.live.clear()
        self.feed.on_ended("m")
        self.feed.on_loaded(MODEL, INFO)

    def truth(self) -> dict[int, int]:
        digest = self.feed.digest("m")
        assert digest is not None
        entries = [digest.entry(each) for each in digest.hashes()]
        return {each.hash: each.usable_tokens << 1 | each.tier for each in entries if each}


@pytest.mark.parametrize("seed", range(20))
async def test_a_mirror_that_begins_at_any_time_is_what_the_node_has_cached(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(prefixes_module, "MAX_ENTRIES", 16)
    monkeypatch.setattr(prefixes_module, "GATHER_S", 0.0)
    world = World(seed)
    mirrors: list[Mirror] = []
    tasks = []
    for _ in range(300):
        for _ in range(world.draw.randint(0, 3)):
            world.change()
        if world.draw.random() < 0.01:
            world.reload()
        if world.draw.random() < 0.05:
            mirrors.append(Mirror())
            events = world.hub.subscribe(STATUS, 0, world.feed.pieces)
            tasks.append(asyncio.create_task(follow(events, mirrors[-1])))
        await asyncio.sleep(0)
    async with asyncio.timeout(10.0):
        # The last changes are sent one iteration of the loop after another.
        while any(mirror.values != world.truth() for mirror in mirrors):
            await asyncio.sleep(0)
    world.hub.close()
    await asyncio.gather(*tasks)
    assert mirrors and all(max(mirror.pieces, default=0) <= 16 for mirror in mirrors)


async def test_without_a_listener_nothing_is_kept_for_one() -> None:
    world = World(1)
    for _ in range(50):
        world.change()
    digest = world.feed.digest("m")
    assert digest is not None and not digest.has_changes and len(digest) > 0
    mirror = Mirror()
    for piece in world.feed.pieces():
        mirror.take(piece)
    assert mirror.values == world.truth()


async def test_a_snapshot_arrives_whole_though_its_model_is_gone_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes_module, "MAX_ENTRIES", 4)
    world = World(1)
    for _ in range(50):
        world.change()
    pieces = world.feed.pieces()
    first = next(pieces)
    world.reload()
    rest = list(pieces)
    assert [piece.part for piece in (first, *rest)] == list(range(first.parts))
    assert {piece.epoch for piece in rest} == {first.epoch}


# --- a whole agent ---------------------------------------------------------------------------


async def test_a_session_is_predicted_turn_by_turn(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        messages = [user("word " * 100)]
        for turn in range(5):
            predicted, cached, answer = await listener.ask(messages)
            assert predicted <= cached <= predicted + 32
            assert (predicted > 0) == (turn > 0)
            messages += [{"role": "assistant", "content": answer}, user(f"{turn} more " * 50)]


async def test_a_salt_shares_nothing_with_others(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        messages = [user("word " * 100)]
        assert (await listener.ask(messages))[:2] == (0, 0)
        assert (await listener.ask(messages, "team"))[:2] == (0, 0)
        predicted, cached, _ = await listener.ask(messages, "team")
        assert 0 < predicted <= cached
        assert (await listener.ask(messages, "other"))[:2] == (0, 0)


async def test_an_unload_clears_the_reported_digest(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        await listener.ask([user("word " * 100)])
        assert listener.mirror.values
        await agent.client.post("/fleet/unload", json={"model": "scripted"})
        async with asyncio.timeout(10.0):
            while listener.mirror.values:
                await asyncio.sleep(0)
        assert (await listener.ask([user("word " * 100)]))[0] == 0
        assert listener.mirror.values and listener.mirror.epoch == 2


async def test_a_later_listener_receives_the_whole_digest(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent:
        async with Listener(agent) as first:
            await first.ask([user("word " * 100)])
        async with Listener(agent) as second:
            await second.until_reported()
            assert second.mirror.values == first.mirror.values


async def test_the_status_reports_the_cache_of_a_loaded_model(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        assert (await agent.status()).models[0].cache is None
        await listener.ask([user("word " * 100)])
        cache = (await agent.status()).models[0].cache
    assert cache is not None and cache.memory_bytes > 0
    assert (cache.bytes_per_token, cache.disk_bytes, cache.snapshot_only) == (10, 0, False)


async def test_a_response_that_goes_on_from_another_goes_on_from_its_chain(tmp_path: Path) -> None:
    path = "/v1/responses"
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        body = msgspec.json.encode({"model": "scripted", "input": "word " * 100})
        first = (await agent.client.post(path, content=body)).json()
        chain = listener.prefix_hasher.chain(read_fields(body), path, "scripted")
        assert chain is not None
        output = OutputText(first["output"][0]["content"][0]["text"])
        chain = chain_with_output(chain, ResponseOutput(path, [output]))
        await listener.until_reported()
        assert set(chain.hashes) <= set(listener.mirror.values)
        body = msgspec.json.encode(
            {"model": "scripted", "input": "and then?", "previous_response_id": first["id"]}
        )
        second = (await agent.client.post(path, content=body)).json()
        longer = listener.prefix_hasher.chain(read_fields(body), path, "scripted", head=chain.end)
        assert longer is not None and longer.hashes[0] == chain.head and len(longer) > 1
        predicted = listener.mirror.values[chain.head] >> 1
        assert 0 < predicted <= second["usage"]["input_tokens_details"]["cached_tokens"]
        await listener.until_reported()
        assert set(longer.hashes) <= set(listener.mirror.values)


async def test_a_response_whose_prompt_begins_in_another_way_has_the_chain_of_all_of_it(
    tmp_path: Path,
) -> None:
    path = "/v1/responses"
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        before = {"model": "scripted", "input": "word " * 100}
        first = (await agent.client.post(path, json=before)).json()
        after = {
            "model": "scripted",
            "instructions": "Be brief.",
            "input": "and then?",
            "previous_response_id": first["id"],
        }
        second = (await agent.client.post(path, json=after)).json()
        assert second["usage"]["input_tokens_details"]["cached_tokens"] < 100
        output = first["output"][0]["content"][0]["text"]
        items = [
            {"role": "user", "content": before["input"]},
            {"role": "assistant", "content": output},
            {"role": "user", "content": "and then?"},
        ]
        whole = read_fields(msgspec.json.encode({**after, "input": items}))
        chain = listener.prefix_hasher.chain(whole, path, "scripted")
        assert chain is not None
        await listener.until_reported()
        assert set(chain.hashes) <= set(listener.mirror.values)


async def until_taken(listener: Listener) -> None:
    """All that was reported so far has arrived: what a later response left arrives after it."""
    await listener.ask([{"role": "user", "content": "later " * 50}])
    await listener.until_reported()


async def test_a_stored_response_s_end_is_reported_to_the_router_that_sent_it(
    tmp_path: Path,
) -> None:
    path = "/v1/responses"
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        body = msgspec.json.encode({"model": "scripted", "input": "word " * 100})
        for origin in ("", "router/key"):
            headers = {HEADER_ORIGIN: origin} if origin else {}
            first = (await agent.client.post(path, content=body, headers=headers)).json()
        await until_taken(listener)
        async with asyncio.timeout(WAIT_S):
            while not listener.mirror.stored:
                await asyncio.sleep(0)
        (stored,) = listener.mirror.stored
        assert (stored.response_id, stored.origin) == (first["id"], "router/key")
        output = OutputText(first["output"][0]["content"][0]["text"])
        chain = listener.prefix_hasher.chain(read_fields(body), path, "scripted")
        assert chain is not None
        end = chain_with_output(chain, ResponseOutput(path, [output])).end
        assert (stored.hash, stored.front, stored.size_bytes) == end


async def test_the_end_of_a_response_that_could_not_be_stored_is_not_reported(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CACHE, responses_bytes=100) as agent, Listener(agent) as listener:
        body = {"model": "scripted", "input": "word " * 100}
        headers = {HEADER_ORIGIN: "router/key"}
        await agent.client.post("/v1/responses", json=body, headers=headers)
        await until_taken(listener)
        assert listener.mirror.stored == []


async def test_an_answer_of_several_choices_ends_no_chain(tmp_path: Path) -> None:
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        body = msgspec.json.encode({**chat_body("word " * 100), "n": 2})
        await agent.client.post("/v1/chat/completions", content=body)
        await listener.until_reported()
        chain = listener.prefix_hasher.chain(read_fields(body), "/v1/chat/completions", "scripted")
        assert chain is not None and set(listener.mirror.values) == set(chain.hashes)


async def test_a_client_that_leaves_leaves_no_request_to_wait_for(tmp_path: Path) -> None:
    script = msgspec.structs.replace(CACHE, tokens=1000, stall_after_tokens=2)
    async with running(tmp_path, script) as agent, Listener(agent) as listener:
        _, writer = await agent.send_raw(msgspec.json.encode(chat_body("word " * 100)))
        await agent.until_active()
        await closed(writer)
        await agent.until_active(0)
        await listener.until_reported()
        digest = agent.app.agent._prefixes.digest("scripted")
        assert digest is not None and not digest._pending


async def test_requests_of_one_id_are_distinguished(tmp_path: Path) -> None:
    path = "/v1/chat/completions"
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        bodies = [listener.body_of([user(f"{word} " * 100)]) for word in ("one", "two", "three")]
        headers = {HEADER_REQUEST_ID: "same"}
        post = partial(agent.client.post, path, headers=headers)
        answers = await asyncio.gather(*(post(content=each) for each in bodies[:2]))
        answers.append(await post(content=bodies[2]))
        await listener.until_reported()
        for body, answer in zip(bodies, answers, strict=True):
            chain = listener.prefix_hasher.chain(read_fields(body), path, "scripted")
            assert chain is not None
            output = OutputText(answer.json()["choices"][0]["message"]["content"])
            whole = chain_with_output(chain, ResponseOutput(path, [output]))
            assert set(whole.hashes) <= set(listener.mirror.values)


async def test_the_chain_of_a_response_that_was_not_consumed_whole_is_not_reported(
    tmp_path: Path,
) -> None:
    path = "/v1/chat/completions"
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        requests = agent.app.agent.requests
        body = listener.body_of([user("word " * 100)])
        chain = listener.prefix_hasher.chain(read_fields(body), path, "scripted")
        assert chain is not None
        job = requests.job(read_chat(body).request, path, "r", chain=LateChain(lambda: chain))
        batches = requests.run(job, WAIT_S)
        await anext(batches)
        async with asyncio.timeout(WAIT_S):
            while requests.open(""):
                await asyncio.sleep(0)
        # All of the answer is there, but nobody has taken its last delta.
        await batches.aclose()
        await listener.until_reported()
        assert set(listener.mirror.values) == set(chain.hashes)


async def test_what_the_next_turn_leaves_out_is_not_promised_beyond(tmp_path: Path) -> None:
    path = "/v1/messages"
    passing = {"role": "system", "content": "now " * 50, "clear_at": "next_user_message"}
    messages: list[dict[str, Any]] = [user("word " * 100), passing]
    async with running(tmp_path, CACHE) as agent, Listener(agent) as listener:
        for turn in range(3):
            request = {"model": "scripted", "max_tokens": 8, "messages": messages}
            body = msgspec.json.encode(request)
            chain = listener.prefix_hasher.chain(read_fields(body), path, "scripted")
            assert chain is not None
            known = [listener.mirror.values.get(each, 0) >> 1 for each in chain.hashes]
            answer = (await agent.client.post(path, content=body)).json()
            await listener.until_reported()
            assert max(known) <= answer["usage"]["cache_read_input_tokens"]
            assert bool(max(known)) is (turn > 0)
            content = answer["content"]
            messages = [*messages, {"role": "assistant", "content": content}, user("more"), passing]
