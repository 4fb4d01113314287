"""Accounts and events: every request that got to a model ends in one record, in order."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from node.agent import agent as agent_module
from node.agent import events as events_module
from node.agent.agent import Agent, Identity
from node.agent.batch import Batch
from node.agent.events import EventHub
from node.agent.open_request import Job, Sender
from node.app import ScriptedStore, scripted_entries
from node.dialects.chat.body import read_chat
from node.engine.scripted.script import Script, ScriptedModel, encode_script
from node.engines.lease import ModelAwaited
from node.engines.link import EngineLink
from node.engines.memory_budget import Budget
from node.engines.slot import EngineKind
from node.engines.supervisor import Supervisor
from node.errors import (
    BadRequest,
    ContextTooLong,
    EngineDied,
    LoadFailure,
    NodeError,
    RequestCancelled,
    ShuttingDown,
    StartError,
    UnknownModel,
)
from node.hardware import Machine
from node.ipc.messages import Accepted, Delta, PartKind, Progress
from node.models.formats import ModelFormats
from node.models.pulls import Pulls
from node.models.store import Contents, ModelEntry
from node.protocol.lifecycle import ModelPolicy, Policies
from node.protocol.messages import (
    HEARTBEAT_S,
    Began,
    CancelMarked,
    Event,
    Finished,
    FinishReason,
    ModelState,
    NodeStatus,
    PrefixDelta,
    StatusEvent,
)
from node.protocol.overflow import Overflow
from node.settings import Settings
from serving.units import GIB
from tests.node.serving import chat_body

WAIT_S = 30.0
STATUS = StatusEvent(NodeStatus(1, "n", "i", "0", "scripted", "chip", 0, 0, ()))


SENDER = Sender("origin", proof="proof")


def finished(request_id: str) -> Finished:
    return Finished(0, request_id, "", "m", 0, 0, 0, 0, 0.0, None, 0.0, 0.0, FinishReason.STOP, 0.0)


@contextlib.asynccontextmanager
async def running(script: Script | None = None, **given: Any) -> AsyncIterator[Agent]:
    script = script or Script()
    settings = Settings(home=Path("/nowhere"), engine="scripted", max_rows=4, **given)
    formats = ModelFormats(reasoning_parsers=settings.reasoning_parsers)
    store = ScriptedStore(scripted_entries(script), formats)
    kind = EngineKind(settings, Machine("x", 64 * GIB), encode_script(script))
    agent = Agent(Identity("node", "1", "chip"), store, Budget(64 * GIB), kind)
    await agent.start()
    try:
        async with asyncio.timeout(WAIT_S):
            yield agent
    finally:
        await agent.close(0.0)


def job(agent: Agent, requested_id: str = "", **fields: Any) -> Job:
    body = {**chat_body(), **fields}
    return agent.requests.job(
        read_chat(json.dumps(body).encode()).request, "/v1/chat/completions", requested_id, SENDER
    )


JOB = Job(
    read_chat(json.dumps(chat_body()).encode()).request,
    "/v1/chat/completions",
    "r",
    SENDER,
    0.0,
    0.0,
)


def deltas_of(batch: Batch) -> list[Delta]:
    return [] if isinstance(batch, Accepted | Progress | ModelAwaited) else list(batch)


async def run(agent: Agent, job: Job) -> list[Delta]:
    return [delta async for batch in agent.requests.run(job, 5.0) for delta in deltas_of(batch)]


async def first_delta(batches: AsyncIterator[Batch]) -> Delta:
    while not (deltas := deltas_of(await anext(batches))):
        pass
    return deltas[0]


async def until_finished(events: AsyncIterator[list[Event]]) -> list[Event]:
    """All events up to the first `Finished`, without the statuses."""
    seen: list[Event] = []
    while not any(isinstance(event, Finished) for event in seen):
        seen += [event for event in await anext(events) if not isinstance(event, StatusEvent)]
    return seen


async def test_a_subscription_begins_with_the_status_and_what_was_missed() -> None:
    hub = EventHub()
    for name in "abc":
        hub.finish(finished(name), JOB)
    events = hub.subscribe(STATUS, after=1)
    first = await anext(events)
    assert first[0] == STATUS
    assert [event.seq for event in first[1:] if isinstance(event, Finished)] == [2, 3]
    hub.finish(finished("d"), JOB)
    hub.publish(CancelMarked("e", 1.0))
    second = await anext(events)
    assert [type(event) for event in second] == [Finished, CancelMarked]
    hub.close()
    assert [batch async for batch in events] == []
    assert not hub.is_watched


async def test_only_so_many_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MOST_FINISHED", 3)
    hub = EventHub()
    for number in range(10):
        hub.finish(finished(str(number)), JOB)
    first = await anext(hub.subscribe(STATUS, after=0))
    assert [event.seq for event in first if isinstance(event, Finished)] == [8, 9, 10]


async def test_a_slow_subscriber_is_dropped_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "SUBSCRIBER_LIMIT", 5)
    hub = EventHub()
    slow, quick = hub.subscribe(STATUS, after=0), hub.subscribe(STATUS, after=0)
    await anext(slow)
    await anext(quick)
    for number in range(9):
        hub.finish(finished(str(number)), JOB)
        assert len(await anext(quick)) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(slow)
    assert hub.is_watched


async def test_a_subscriber_that_lets_long_events_wait_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "SUBSCRIBER_BYTES", 100)
    hub = EventHub()
    slow = hub.subscribe(STATUS, after=0)
    await anext(slow)
    for seq in range(3):
        hub.publish(PrefixDelta("m", 1, seq, bytes(30), bytes(10)))
    with pytest.raises(StopAsyncIteration):
        await anext(slow)


async def test_a_reconnect_to_another_instance_gets_everything_kept() -> None:
    async with running() as agent:
        await run(agent, job(agent, max_tokens=1))
        await run(agent, job(agent, max_tokens=1))
        for instance, after, expected in (
            ("other", 99, [1, 2]),
            ("", 1, [1, 2]),
            (agent.instance_id, 1, [2]),
            (agent.instance_id, 2, []),
        ):
            first = await anext(agent.subscribe(instance, after))
            assert isinstance(first[0], StatusEvent)
            assert first[0].status.instance_id == agent.instance_id
            assert [event.seq for event in first if isinstance(event, Finished)] == expected


async def test_a_finished_request_has_its_usage() -> None:
    async with running() as agent:
        deltas = await run(agent, job(agent, "mine", max_tokens=3))
        (record,) = [
            event for event in await anext(agent.subscribe("", 0)) if isinstance(event, Finished)
        ]
        assert deltas[-1].token_count == 3
        assert (record.request_id, record.origin, record.model) == ("mine", "origin", "scripted")
        assert record.proof == "proof"
        assert (record.prompt_tokens, record.completion_tokens) == (2, 3)
        assert record.reason is FinishReason.LENGTH
        assert record.ttft_s is not None


async def test_a_request_of_several_choices_has_one_account() -> None:
    async with running(Script(outputs=("one", "two and three"))) as agent:
        deltas = await run(agent, job(agent, n=2))
        assert deltas[-1].is_last
        (record,) = [
            event for event in await anext(agent.subscribe("", 0)) if isinstance(event, Finished)
        ]
        assert (record.prompt_tokens, record.completion_tokens) == (2, 5)
        assert record.reason is FinishReason.STOP


async def test_tokens_of_several_choices_are_counted_when_the_client_disconnects() -> None:
    async with running(Script(stall_after_tokens=2)) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        batches = agent.requests.run(job(agent, "mine", n=3), 0.05)
        count = 0
        while count < 6:
            count += len(deltas_of(await anext(batches)))
        (view,) = agent.requests.open("origin")
        assert (view["state"], view["completion_tokens"]) == ("generating", 6)
        await batches.aclose()
        *_, record = await until_finished(events)
        assert isinstance(record, Finished)
        assert (record.reason, record.completion_tokens) == (FinishReason.CANCELLED, 6)


async def test_more_choices_than_an_engine_has_rows_are_refused() -> None:
    async with running() as agent:
        with pytest.raises(BadRequest) as refused:
            await run(agent, job(agent, n=5))
        assert refused.value.param == "n"


@pytest.mark.parametrize(
    ("script", "fields", "error", "reason"),
    [
        (Script(load_failure="No."), {}, LoadFailure, FinishReason.ERROR),
        (Script(crash_after_tokens=1), {}, EngineDied, FinishReason.ERROR),
        (Script(step_failure_after_tokens=1), {}, NodeError, FinishReason.ERROR),
        (Script(step_failure_after_tokens=1), {"n": 3}, NodeError, FinishReason.ERROR),
        (Script(models=(ScriptedModel(context_tokens=1),)), {}, BadRequest, FinishReason.REFUSED),
        (Script(), {"logit_bias": {"300": 1}}, BadRequest, FinishReason.REFUSED),
        (Script(), {"model": "nothing"}, UnknownModel, None),
    ],
)
async def test_a_failed_request_is_accounted_for_unless_its_model_is_not_here(
    script: Script,
    fields: dict[str, Any],
    error: type[NodeError],
    reason: FinishReason | None,
) -> None:
    async with running(script) as agent:
        with pytest.raises(error):
            await run(agent, job(agent, **fields))
        first = await anext(agent.subscribe("", 0))
        reasons = [event.reason for event in first if isinstance(event, Finished)]
        assert reasons == ([] if reason is None else [reason])


async def test_a_prompt_that_is_too_long_is_refused_before_the_model_is_loaded() -> None:
    script = Script(models=(ScriptedModel(context_tokens=8),), load_failure="No.")
    async with running(script) as agent:
        with pytest.raises(ContextTooLong) as refused:
            await run(agent, job(agent, messages=[{"role": "user", "content": "x" * 40}]))
        assert refused.value.overflow == Overflow(10, 8)
        assert refused.value.param == "messages"
        (status,) = agent.status().models
        assert (status.state, status.generation) == (ModelState.ON_DISK, 0)
        with pytest.raises(LoadFailure):
            await run(agent, job(agent, messages=[{"role": "user", "content": "x" * 20}]))
        reported = await anext(agent.subscribe("", 0))
        first, second = [each for each in reported if isinstance(each, Finished)]
        assert (first.reason, first.prompt_tokens) == (FinishReason.REFUSED, 10)
        assert second.reason is FinishReason.ERROR


async def test_closing_a_run_cancels_its_sequence() -> None:
    async with running(Script(stall_after_tokens=1)) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        batches = agent.requests.run(job(agent, "mine"), 5.0)
        assert (await first_delta(batches)).token_count == 1
        await batches.aclose()
        *_, marked, record = await until_finished(events)
        assert isinstance(marked, CancelMarked) and marked.request_id == "mine"
        assert isinstance(record, Finished)
        assert (record.reason, record.completion_tokens) == (FinishReason.CANCELLED, 1)


@pytest.mark.parametrize(
    ("fields", "began"),
    [
        ({}, 1),
        ({"n": 3}, 1),
        ({"stream": True}, 0),
        ({"stream": True, "stop": "xxxxxxxxxy"}, 1),  # withheld, for it may be the stop string
    ],
)
async def test_the_end_of_a_prefill_is_reported_once_where_the_response_does_not_show_it(
    fields: dict[str, Any], began: int
) -> None:
    async with running(Script(outputs=("xxxxxxxxx",), stall_after_tokens=1)) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        batches = agent.requests.run(job(agent, "mine", **fields), 5.0)
        await first_delta(batches)
        await batches.aclose()
        seen = [event for event in await until_finished(events) if isinstance(event, Began)]
        assert seen == [Began("mine", "origin")] * began


async def test_reasoning_that_is_perhaps_hidden_does_not_show_the_end_of_a_prefill() -> None:
    # Its output begins within the reasoning.
    given = {"reasoning_parsers": (("", "olmo3"),)}
    async with running(Script(outputs=("abcdefgh",), stall_after_tokens=1), **given) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        streamed = job(agent, "mine", stream=True, include_reasoning=False)
        batches = agent.requests.run(streamed, 5.0)
        (part,) = (await first_delta(batches)).parts
        assert part.kind is PartKind.REASONING
        await batches.aclose()
        seen = [event for event in await until_finished(events) if isinstance(event, Began)]
        assert seen == [Began("mine", "origin")]


async def test_a_response_of_one_token_shows_itself_that_its_prefill_is_over() -> None:
    async with running() as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        await run(agent, job(agent, max_tokens=1))
        (record,) = await until_finished(events)
        assert isinstance(record, Finished)


async def test_the_prefill_of_a_request_without_a_router_is_not_reported() -> None:
    async with running() as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        request = read_chat(json.dumps(chat_body()).encode()).request
        await run(agent, agent.requests.job(request, "/v1/chat/completions", "mine"))
        (record,) = await until_finished(events)
        assert isinstance(record, Finished)


async def test_silence_is_a_batch_without_deltas_from_the_load_on() -> None:
    async with running(Script(load_delay_s=0.2, wedge=True)) as agent:
        batches = agent.requests.run(job(agent), 0.02)
        for _ in range(30):
            assert deltas_of(await anext(batches)) == []
        await batches.aclose()


async def test_the_silence_of_a_prefill_is_its_progress() -> None:
    script = Script(prefill_s_per_token=0.1, progress_interval_s=0.01)
    async with running(script) as agent:
        batches = agent.requests.run(job(agent, max_tokens=1), 0.02)
        kinds = [type(batch) async for batch in batches]
        assert kinds.index(Accepted) < kinds.index(Progress)
        assert kinds[-1] is list


async def test_ids_are_taken_over_if_they_are_sane_and_free() -> None:
    async with running(Script(stall_after_tokens=1)) as agent:
        assert job(agent, "a.b_c-1").request_id == "a.b_c-1"
        for bad in ("", "a b", "x" * 65, "a\nb", "é"):
            assert job(agent, bad).request_id != bad
        batches = agent.requests.run(job(agent, "x" * 64), 5.0)
        await anext(batches)
        other = job(agent, "x" * 64).request_id
        assert other != "x" * 64 and len(other) <= 64
        await batches.aclose()


async def test_a_cancel_counts_also_while_the_model_is_being_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as agent:
        find, looking, go = Supervisor.find, asyncio.Event(), asyncio.Event()

        async def slow_find(self: Supervisor, model: str) -> ModelEntry:
            looking.set()
            await go.wait()
            return await find(self, model)

        monkeypatch.setattr(Supervisor, "find", slow_find)
        events = agent.subscribe("", 0)
        task = asyncio.create_task(run(agent, job(agent, "mine")))
        await looking.wait()
        agent.requests.cancel("mine", "origin")
        go.set()
        with pytest.raises(RequestCancelled):
            await task
        seen = await until_finished(events)
        assert [each.reason for each in seen if isinstance(each, Finished)] == ["cancelled"]
        assert agent.requests.open("") == []


async def test_changes_of_residency_are_reported_at_once_and_silence_is_short() -> None:
    async with running() as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        await agent.load("scripted")
        await agent.unload("scripted")
        states = [
            event.status.models[0].state
            for event in await anext(events)
            if isinstance(event, StatusEvent)
        ]
        # A heartbeat may arrive between two changes, and report the same again.
        seen = [state for state, _ in groupby(states)]
        assert [state for state in seen if state is not ModelState.ON_DISK] == [
            ModelState.LOADING,
            ModelState.READY,
            ModelState.DRAINING,
        ]
        assert seen[-1] is ModelState.ON_DISK
        async with asyncio.timeout(HEARTBEAT_S):
            assert isinstance((await anext(events))[0], StatusEvent)


async def test_what_routers_want_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[bool] = []

    def look(supervisor: Supervisor) -> None:
        pinned.append(supervisor._residency.of("scripted").pinned)

    monkeypatch.setattr(Supervisor, "on_residency_change", look)
    async with running() as agent:
        agent.set_policies(Policies("router", {"scripted": ModelPolicy(pinned=True)}))
        assert pinned == [True]
        assert not agent.status().in_maintenance
        agent.set_policies(Policies("other", {}, in_maintenance=True))
        assert pinned == [True, False]
        assert agent.status().in_maintenance


async def test_who_orders_a_load_is_not_refused_for_the_last_ones_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[EngineLink] = []

    async def torn(link: EngineLink, spec: object, spare: object) -> None:
        tries.append(link)
        raise LoadFailure("Torn.")

    monkeypatch.setattr(EngineLink, "start", torn)
    async with running() as agent:
        for _ in range(2):
            with pytest.raises(LoadFailure):
                await agent.load("scripted")
        assert len(tries) == 2


async def test_a_running_agent_resumes_its_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = asyncio.Event()
    monkeypatch.setattr(agent_module, "REFRESH_S", 0.0)
    monkeypatch.setattr(Pulls, "retry_due", lambda pulls: looked.set())
    async with running():
        await looked.wait()


async def test_an_agent_is_ready_while_it_runs_and_has_a_model() -> None:
    async with running() as agent:
        assert agent.unready_reason() is None
        assert [card.name for card in await agent.cards()] == ["scripted"]
        agent.end_events()
        assert agent.unready_reason() is not None


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        pytest.param(Script(load_delay_s=60), 0, id="loading"),
        pytest.param(Script(accept_delay_s=60), 0, id="waiting"),
        pytest.param(Script(stall_after_tokens=2), 2, id="decoding"),
    ],
)
async def test_what_is_open_at_the_end_of_the_grace_is_ended_and_accounted(
    script: Script, tokens: int
) -> None:
    async with running(script) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        batches = agent.requests.run(job(agent, "mine"), 0.01)
        seen = 0
        while seen < tokens or agent.status().models[0].state is ModelState.ON_DISK:
            seen = max([seen, *(delta.token_count for delta in deltas_of(await anext(batches)))])
        rest = asyncio.create_task(until_end(batches))
        drain = asyncio.create_task(agent.drain(0.05))
        with pytest.raises(ShuttingDown):
            await rest
        await drain
        records = [event async for batch in events for event in batch]
        (record,) = [event for event in records if isinstance(event, Finished)]
        assert (record.request_id, record.reason) == ("mine", FinishReason.ERROR)
        assert record.completion_tokens == tokens


async def until_end(batches: AsyncIterator[Batch]) -> None:
    async for _ in batches:
        pass


async def test_a_request_that_ends_within_the_grace_is_not_disturbed() -> None:
    async with running(Script(tokens=5, token_interval_s=0.02)) as agent:
        events = agent.subscribe("", 0)
        batches = agent.requests.run(job(agent), 5.0)
        await anext(batches)
        drain = asyncio.create_task(agent.drain(WAIT_S))
        await asyncio.wait({drain}, timeout=0)
        with pytest.raises(ShuttingDown):
            await run(agent, job(agent))
        await until_end(batches)
        await drain
        records = [event async for batch in events for event in batch]
        reasons = [event.reason for event in records if isinstance(event, Finished)]
        assert reasons == [FinishReason.ERROR, FinishReason.STOP]


async def test_a_hurry_ends_the_grace() -> None:
    async with running(Script(wedge=True)) as agent:
        answer = asyncio.create_task(run(agent, job(agent)))
        drain = asyncio.create_task(agent.drain(60))
        agent.requests.end_grace()
        await drain
        with pytest.raises(ShuttingDown):
            await answer


async def test_a_request_that_cannot_be_sent_to_the_engine_is_accounted_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as agent:
        own = job(agent)
        request = replace(own.request, stops=("\ud800",))
        events = agent.subscribe("", 0)
        await anext(events)
        with pytest.raises(UnicodeEncodeError):
            await run(agent, replace(own, request=request))
        assert agent.requests.open("") == []
        [*_, event] = await until_finished(events)
        assert isinstance(event, Finished)
        assert event.reason is FinishReason.ERROR
        assert agent.status().models[0].active_requests == 0
        assert (await run(agent, job(agent)))[-1].finish is not None


async def test_settings_for_a_model_that_is_not_there_are_logged_at_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(
        max_thinking_tokens=(("", 5), ("scripted", 6), ("script", 7)),
        tool_parsers=(("a", "hermes"), ("b", "hermes")),
    ):
        pass
    assert [line for line in caplog.messages if "not on this node" in line] == [
        "--tool-parser is for models not on this node: a, b. Models here: scripted.",
        "--max-thinking-tokens is for models not on this node: script. Models here: scripted.",
    ]


async def test_a_store_that_hangs_or_fails_does_not_delay_the_heartbeat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_module, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(agent_module, "REFRESH_S", 0.02)
    hanging, ending, failed = threading.Event(), threading.Event(), threading.Event()

    def read(_self: ScriptedStore) -> Contents:
        if failed.is_set():
            hanging.set()
            assert ending.wait(WAIT_S)
        failed.set()
        raise StartError("The models cannot be read.")

    async with running() as agent:
        events = agent.subscribe("", 0)
        with monkeypatch.context() as patch:
            patch.setattr(ScriptedStore, "contents", read)
            while not hanging.is_set():
                assert await anext(events)
            for _ in range(5):
                assert await anext(events)
            ending.set()
    assert "The models cannot be read." in caplog.messages
