"""Reports 27 to 38 and 40: which node gets a request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script as EngineScript
from node.engine.scripted.script import ScriptedModel
from node.protocol.messages import StatusEvent
from router.fleet import watcher as watcher_module
from router.states import ACTIVE, CORDONED
from router.types import Lease, Ticket
from tests.faults.rig import WAIT_S, add_real, until
from tests.node.serving import RunningAgent, running
from tests.router.conftest import (
    AddNode,
    Request,
    RunningRouter,
    Script,
    ScriptedNode,
    StartNode,
    model_status,
    node_record,
    node_status,
    running_router,
)
from tests.router.dispatch.test_relay import STREAM, WHOLE, refuse, request_counts, stream, whole


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that looks for lost nodes at once."""
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(watcher_module, "MAX_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher_module, "LOST_GRACE_S", 0.05)


async def answer_of(router: RunningRouter, body: object = None, **headers: str) -> tuple[int, str]:
    """(status, node) of one answer."""
    caller = await router.post(WHOLE if body is None else body, **headers)
    await caller.body()
    caller.leave()
    return caller.status, caller.headers.get("x-fleet-node", "")


def reachable(router: RunningRouter) -> int:
    return sum(view.reachable for view in router.core.fleet.snapshot)


async def admin_get(router: RunningRouter, path: str) -> Any:
    key = router.core.settings.current.admin_key_file.read_text().strip()
    caller = await router.send("GET", path, authorization=f"Bearer {key}")
    return json.loads(await caller.body())


# --- nodes that fail ---


def slowly(script: Script) -> Script:
    async def answer(request: Request) -> None:
        await asyncio.sleep(0.02)
        await script(request)

    return answer


@pytest.mark.parametrize("status", ["500 Oops", "502 Bad Gateway", "503 Service Unavailable"])
async def test_fault_27_a_node_that_fails_at_once_does_not_draw_the_requests(
    router: RunningRouter, add_node: AddNode, status: str
) -> None:
    failing = await add_node(router, "a", refuse(status))
    serving = await add_node(router, "b", slowly(whole))

    async def one_after_another() -> None:
        for _ in range(25):
            await answer_of(router)

    await asyncio.gather(*(one_after_another() for _ in range(4)))
    drawn = request_counts(failing, serving)
    assert drawn[0] <= 10 and drawn[1] >= 90


@pytest.mark.parametrize("body", [WHOLE, STREAM])
@pytest.mark.parametrize(
    "status", ["409 Conflict", "429 Too Many Requests", "503 Service Unavailable"]
)
async def test_fault_28_a_request_that_one_node_turns_away_goes_to_one_that_is_free(
    router: RunningRouter, add_node: AddNode, status: str, body: dict[str, object]
) -> None:
    busy = await add_node(router, "a", refuse(status, retry_after="7"))
    serving = await add_node(router, "b", stream if body is STREAM else whole)
    for _ in range(6):
        assert await answer_of(router, body) == (200, "b")
    assert request_counts(busy, serving) == [1, 6]
    # It has not failed.
    rows = {row["name"]: row for row in await admin_get(router, "/admin/nodes")}
    assert rows["a"]["breakers"] == rows["b"]["breakers"] == []
    (model,) = await admin_get(router, "/admin/models")
    assert not any(place["failing"] for place in model["nodes"])


async def test_where_every_node_turns_a_request_away_the_caller_gets_the_shortest_wait(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", refuse("503 Service Unavailable", retry_after="3"))
    await add_node(router, "b", refuse("429 Too Many Requests", retry_after="60"))
    for _ in range(2):
        caller = await router.post(WHOLE)
        assert await caller.head() in (429, 503)
        assert caller.headers["retry-after"] == "3"


async def test_fault_29_what_is_not_routed_to_is_not_shown_as_healthy(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", refuse("500 Oops"))
    for _ in range(20):
        await answer_of(router)
    (row,) = await admin_get(router, "/admin/nodes")
    assert row["reachable"] is True
    (breaker,) = row["breakers"]
    assert (breaker["model"], breaker["state"]) == ("m", "open")
    assert breaker["failures"] == breaker["outcomes"] > 0
    series = b'mlx_fleet_breaker_state{model="m",node="a",state="open"} 1.0'
    assert series in router.core.metrics.text()
    (model,) = await admin_get(router, "/admin/models")
    (place,) = model["nodes"]
    assert place["failing"] is True


# --- nodes that disconnect ----


def first_word(name: str, instance_id: str = "i1") -> tuple[StatusEvent]:
    status = node_status(model_status("m"), node_id="id-" + name, instance_id=instance_id)
    return (StatusEvent(status),)


@pytest.mark.usefixtures("quick")
async def test_fault_30_a_model_whose_node_is_silent_is_not_unknown(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", whole)
    await node.stop()
    await until(lambda: reachable(router) == 0)
    caller = await router.post(WHOLE)
    error = await caller.error()
    assert (caller.status, error["code"]) == (503, "no_node_ready")
    assert int(caller.headers["retry-after"]) >= 1
    caller = await router.post({"model": "never-seen"})
    assert await caller.head() == 404


@pytest.mark.usefixtures("quick")
async def test_fault_31_a_node_that_reconnects_is_used_again(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", whole)
    for _ in range(2):
        await node.stop()
        await until(lambda: reachable(router) == 0)
        assert (await answer_of(router))[0] == 503
        await node.start()
        await until(lambda: reachable(router) == 1)
        assert await answer_of(router) == (200, "a")


async def test_a_router_that_restarts_finds_its_nodes(
    tmp_path: Path, start_node: StartNode
) -> None:
    node = await start_node(whole, first_events=first_word("a"))
    async with running_router(tmp_path) as router:
        await router.add(node, "a")
    async with running_router(tmp_path) as router:
        await until(lambda: reachable(router) == 1)
        assert await answer_of(router) == (200, "a")


@pytest.mark.usefixtures("quick")
async def test_fault_32_nothing_goes_to_where_a_node_was_before(
    router: RunningRouter, start_node: StartNode
) -> None:
    old = await start_node(whole, first_events=first_word("a"))
    await router.add(old, "a")
    assert await answer_of(router) == (200, "a")
    await old.stop()
    await until(lambda: reachable(router) == 0)
    await router.core.watcher.unwatch("id-a")
    router.core.dispatcher.forget_node("id-a")
    new = await start_node(whole, first_events=first_word("a", "i2"))
    record = node_record(new.url, "a")
    await asyncio.wait_for(router.core.watcher.watch(record), WAIT_S)
    strange = ScriptedNode(whole, port=old.port)
    await strange.start()
    for _ in range(5):
        assert await answer_of(router) == (200, "a")
    assert request_counts(old, new) == [1, 5]
    assert strange.connections == 0
    await strange.stop()


async def test_fault_32_nothing_goes_to_a_node_that_has_started_anew_since_it_was_chosen(
    router: RunningRouter, add_node: AddNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {f"id-{name}": await add_node(router, name, whole) for name in "ab"}
    place = router.core.dispatcher.place
    left: list[str] = []

    async def place_and_restart(ticket: Ticket) -> Lease:
        lease = await place(ticket)
        anew = node_status(model_status("other"), node_id=lease.node_id, instance_id="i2")
        router.core.fleet.on_status(lease.node_id, anew)
        left.append(lease.node_id)
        return lease

    monkeypatch.setattr(router.core.dispatcher, "place", place_and_restart)
    status, name = await answer_of(router)
    assert status == 200 and left != [f"id-{name}"]
    assert request_counts(nodes[left[0]], nodes[f"id-{name}"]) == [0, 1]
    assert router.core.traffic.breakers() == []


async def test_fault_33_a_node_is_the_same_after_its_restart_and_gone_once_removed(
    router: RunningRouter, tmp_path: Path
) -> None:
    script = EngineScript(models=(ScriptedModel("m"),))
    async with running(tmp_path / "n", script) as agent:
        await add_real(router, agent, "n")
        before = await agent.status()
    async with running(tmp_path / "n", script) as agent:
        after = await agent.status()
        assert after.node_id == before.node_id
        assert after.instance_id != before.instance_id
    assert [view.node_id for view in router.core.fleet.snapshot] == [before.node_id]
    key = router.core.settings.current.admin_key_file.read_text().strip()
    caller = await router.send("DELETE", "/admin/nodes/n", authorization=f"Bearer {key}")
    assert await caller.head() == 200
    assert router.core.fleet.snapshot == ()
    # Nobody has the model any more, as nobody is away who has.
    assert (await answer_of(router))[0] == 404


async def test_a_cordoned_node_gets_nothing_new_and_ends_what_it_has(
    router: RunningRouter, add_node: AddNode
) -> None:
    go_on = asyncio.Event()

    async def slow(request: Request) -> None:
        await go_on.wait()
        await whole(request)

    cordoned = await add_node(router, "a", slow)
    begun = asyncio.create_task(answer_of(router))
    await until(lambda: request_counts(cordoned) == [1])
    router.core.fleet.set_state("id-a", CORDONED)
    assert (await answer_of(router))[0] == 503
    spare = await add_node(router, "b", whole)
    for _ in range(4):
        assert await answer_of(router) == (200, "b")
    go_on.set()
    assert await begun == (200, "a")
    assert request_counts(cordoned, spare) == [1, 4]
    router.core.fleet.set_state("id-a", ACTIVE)
    assert {(await answer_of(router))[1] for _ in range(6)} == {"a", "b"}


# --- which of several that could ---


@asynccontextmanager
async def real_nodes(
    router: RunningRouter, home: Path, names: str, **fields: Any
) -> AsyncIterator[list[RunningAgent]]:
    """Agents with the model `m`, loaded, that keep what they have prefilled."""
    cache = ScriptedCache(capacity_tokens=100_000)
    script = EngineScript(models=(ScriptedModel("m"),), cache=cache, **fields)
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(running(home / n, script)) for n in names]
        loads = (each.client.post("/fleet/load", json={"model": "m"}) for each in agents)
        await asyncio.gather(*loads)
        for name, each in zip(names, agents, strict=True):
            await add_real(router, each, name)
        yield agents


def turns(system: str, *texts: str) -> dict[str, Any]:
    """A conversation, with made-up answers in between."""
    messages = [{"role": "system", "content": system}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
    return {"model": "m", "max_tokens": 2, "messages": messages[:-1]}


@pytest.mark.usefixtures("quick")
async def test_fault_34_a_session_leaves_a_node_that_is_gone(
    router: RunningRouter, tmp_path: Path
) -> None:
    body = turns("You are a careful assistant. " * 300, "hello")
    async with real_nodes(router, tmp_path, "ab", prefill_s_per_token=0.0002) as agents:
        served = [(await answer_of(router, body, x_session_id="s"))[1] for _ in range(3)]
        (home,) = set(served)
        (other,) = set("ab") - {home}
        agents["ab".index(home)].app.agent.end_events()
        await until(lambda: reachable(router) == 1)
        for _ in range(3):
            assert await answer_of(router, body, x_session_id="s") == (200, other)


async def test_fault_35_a_common_system_prompt_does_not_pin_all_users_to_one_node(
    router: RunningRouter, tmp_path: Path
) -> None:
    system = "You are a careful assistant. " * 200
    # Of prompts that are mostly their users' own.
    texts = [f"user {n}: " + f"word{n} " * 1000 for n in range(8)]
    async with real_nodes(router, tmp_path, "ab", prefill_s_per_token=0.0002, max_rows=4):
        assert (await answer_of(router, turns(system, "first")))[0] == 200
        answers = await asyncio.gather(*(answer_of(router, turns(system, text)) for text in texts))
        share = Counter(node for _, node in answers)
        assert set(share) == {"a", "b"} and min(share.values()) >= 2, share
        # And each goes back to where its own part is.
        for (_, node), text in zip(answers[:4], texts, strict=False):
            assert await answer_of(router, turns(system, text, "more")) == (200, node)


def known(router: RunningRouter) -> int:
    """Prefixes that were reported to the router."""
    return sum(router.core.prefixes.entries_by_node().values())


async def more_known(router: RunningRouter, before: int) -> None:
    await until(lambda: known(router) > before)


async def test_fault_36_a_session_stays_where_it_is_from_its_first_turn_worth_it(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with real_nodes(router, tmp_path, "abc", prefill_s_per_token=0.0002):
        for number in range(3):
            texts, served = [f"short {number}"], []
            # The last one has no session field.
            hint = {"x_session_id": f"s{number}"} if number < 2 else {}
            for turn in range(4):
                before = known(router)
                served.append(await answer_of(router, turns("Be brief.", *texts), **hint))
                # Nodes report a little later what they have cached.
                await more_known(router, before)
                texts.append(f"turn {turn} " + "word " * 300)
            # However short the first one was.
            assert len(set(served)) == 1, served


async def test_fault_37_cold_requests_are_spread_where_nothing_decides(
    router: RunningRouter, add_node: AddNode
) -> None:
    for name in "abc":
        await add_node(router, name, whole)
    share = Counter([(await answer_of(router, turns(f"s{n}", f"text {n}")))[1] for n in range(12)])
    assert set(share) == set("abc") and max(share.values()) <= 6, share


async def test_fault_38_a_request_counts_from_when_it_is_sent(
    router: RunningRouter, add_node: AddNode
) -> None:
    begun = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def prefilling(request: Request) -> None:
        begun.release()
        await go_on.wait()
        await whole(request)

    nodes = [await add_node(router, name, prefilling) for name in "abc"]
    answers = []
    for number in range(6):
        answers.append(asyncio.create_task(answer_of(router, turns("s", f"text {number}"))))
        await asyncio.wait_for(begun.acquire(), WAIT_S)
    assert request_counts(*nodes) == [2, 2, 2]
    go_on.set()
    assert {status for status, _ in await asyncio.gather(*answers)} == {200}


async def test_fault_40_a_billing_header_that_changes_costs_no_prefill(
    router: RunningRouter, tmp_path: Path
) -> None:
    def turn(nonce: str) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={nonce};"}
        prompt = {"type": "text", "text": "You are a careful assistant. " * 300}
        user = {"role": "user", "content": "hello"}
        return {"model": "m", "max_tokens": 2, "system": [header, prompt], "messages": [user]}

    async with real_nodes(router, tmp_path, "ab"):
        served = []
        for nonce in ("1a", "2b", "3c"):
            caller = await router.post(turn(nonce), "/v1/messages")
            usage = json.loads(await caller.body())["usage"]
            served.append(caller.headers["x-fleet-node"])
            if nonce != "1a":
                assert usage["cache_read_input_tokens"] > 0.9 * (
                    usage["cache_read_input_tokens"] + usage["input_tokens"]
                )
        assert len(set(served)) == 1
