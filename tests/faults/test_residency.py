"""Reports 16 to 26: models that come and go, on real agents with scripted engines."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.lifecycle import PATH_UNLOAD
from node.protocol.messages import ModelState, ModelStatus, StatusEvent
from serving.units import GIB
from tests.faults.rig import WAIT_S, add_real, chat, until
from tests.node.serving import RunningAgent, running
from tests.router.conftest import RunningRouter

AB = (ScriptedModel("a"), ScriptedModel("b"))
ROOM_FOR_ONE: dict[str, Any] = {"memory_limit_bytes": 2 * GIB}
CHAT_PATH = "/v1/chat/completions"


@dataclass
class Loads:
    """The loads of its models that an agent reports."""

    begun: Counter[str] = field(default_factory=Counter)
    begun_s: list[float] = field(default_factory=list)
    """Begins of the loads by the agent's report, since its events may be late."""
    ready: Counter[str] = field(default_factory=Counter)
    _states: dict[str, ModelState] = field(default_factory=dict)

    def learn(self, models: tuple[ModelStatus, ...]) -> None:
        for model in models:
            if self._states.get(model.name) is not model.state:
                self._states[model.name] = model.state
                if model.state is ModelState.LOADING:
                    self.begun[model.name] += 1
                    self.begun_s.append(model.since_unix_s)
                self.ready[model.name] += model.state is ModelState.READY


@dataclass
class Node:
    agent: RunningAgent
    loads: Loads

    async def model(self, name: str = "a") -> ModelStatus:
        models = (await self.agent.status()).models
        return next(model for model in models if model.name == name)

    async def in_state(self, state: ModelState, name: str = "a") -> None:
        async with asyncio.timeout(WAIT_S):
            while (await self.model(name)).state is not state:
                await asyncio.sleep(0.01)

    async def unload(self, **conditions: Any) -> int:
        """Asks for an unload of `a`; the status."""
        body = {"model": "a", **conditions}
        return (await self.agent.client.post(PATH_UNLOAD, json=body)).status_code


@asynccontextmanager
async def node(
    router: RunningRouter, home: Path, script: Script | None = None, **settings: Any
) -> AsyncIterator[Node]:
    """An agent with the models `a` and `b` behind the router."""
    script = script or Script(models=AB)
    async with running(home, script, **settings) as agent, agent.events() as events:
        loads = Loads()

        async def watch() -> None:
            while True:
                loads.learn((await events.next(StatusEvent)).status.models)

        watching = asyncio.create_task(watch())
        try:
            await add_real(router, agent, home.name)
            yield Node(agent, loads)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def ask(router: RunningRouter, model: str = "a", **fields: Any) -> tuple[int, bytes]:
    """Status and body of one answer."""
    caller = await router.post(chat(model, **{"max_tokens": 2} | fields))
    body = await caller.body()
    caller.leave()
    return caller.status, body


async def statuses(*answers: Any) -> Counter[int]:
    return Counter(status for status, _ in await asyncio.gather(*answers))


# --- unloads ---


async def test_fault_16_an_unload_that_races_with_requests_hangs_none(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with node(router, tmp_path / "n") as it:
        chance = random.Random(16)

        async def unload() -> int:
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            return await it.unload()

        unloaded: Counter[int] = Counter()
        async with asyncio.timeout(3 * WAIT_S):
            for _ in range(6):
                answers = asyncio.create_task(statuses(*(ask(router) for _ in range(3))))
                unloaded.update(await asyncio.gather(unload(), unload()))
                assert await answers == {200: 3}
        assert set(unloaded) <= {200, 409}
        assert it.loads.begun["a"] > 1, "no unload came between two requests"


async def test_fault_17_idleness_counts_from_the_end_of_the_last_request(
    router: RunningRouter, tmp_path: Path
) -> None:
    script = Script(models=AB, token_interval_s=0.05)
    async with node(router, tmp_path / "n", script) as it:
        begun_s = time.monotonic()
        assert (await ask(router, max_tokens=20))[0] == 200
        # As long as the request took the model has not been idle yet.
        least_s = time.monotonic() - begun_s
        assert await it.unload(min_idle_s=least_s) == 409
        model = await it.model()
        assert model.state is ModelState.READY
        assert model.idle_s is not None and model.idle_s < least_s
        async with asyncio.timeout(WAIT_S):
            while await it.unload(min_idle_s=least_s) == 409:
                await asyncio.sleep(0.05)
        await it.in_state(ModelState.ON_DISK)


# --- two models, room for one ---


async def test_fault_18_two_models_at_once_are_both_answered(
    router: RunningRouter, tmp_path: Path
) -> None:
    settings = {**ROOM_FOR_ONE, "min_residency_s": 0.2}
    script = Script(models=AB, token_interval_s=0.02)
    async with node(router, tmp_path / "n", script, **settings) as it:
        async with asyncio.timeout(2 * WAIT_S):
            answers = await asyncio.gather(
                *(ask(router, model, stream=True, max_tokens=10) for model in "abab")
            )
        assert [status for status, _ in answers] == [200] * 4
        assert all(body.rstrip().endswith(b"data: [DONE]") for _, body in answers)
        states = [(await it.model(name)).state for name in "ab"]
        assert states.count(ModelState.READY) == 1, "there was room for both"


async def test_fault_19_two_models_in_turn_swap_once_in_a_residency(
    router: RunningRouter, tmp_path: Path
) -> None:
    residency_s = 0.5
    settings = {**ROOM_FOR_ONE, "min_residency_s": residency_s, "max_swap_wait_s": 10.0}
    async with node(router, tmp_path / "n", **settings) as it:
        begun_s = time.monotonic()
        async with asyncio.timeout(3 * WAIT_S):
            assert await statuses(*(ask(router, model) for model in "ab" * 10)) == {200: 20}
            assert await statuses(*(ask(router, model) for model in "ab" * 10)) == {200: 20}
        took_s = time.monotonic() - begun_s
        assert 2 <= it.loads.begun.total() <= min(6, 2 + took_s / residency_s)
        pairs = zip(it.loads.begun_s, it.loads.begun_s[1:], strict=False)
        assert all(later - earlier > 0.99 * residency_s for earlier, later in pairs)


async def test_fault_20_a_load_that_nobody_waits_for_gives_way(
    router: RunningRouter, tmp_path: Path
) -> None:
    settings = {**ROOM_FOR_ONE, "min_residency_s": 0.1}
    async with node(router, tmp_path / "n", Script(models=AB, load_delay_s=1.0), **settings) as it:
        left = await router.post(chat("a", stream=True))
        await it.in_state(ModelState.LOADING, "a")
        left.leave()
        assert (await ask(router, "b"))[0] == 200
        assert it.loads.ready == {"a": 0, "b": 1}


async def test_fault_22_a_model_that_generates_is_not_evicted(
    router: RunningRouter, tmp_path: Path
) -> None:
    settings = {**ROOM_FOR_ONE, "min_residency_s": 0.1}
    script = Script(models=AB, token_interval_s=0.05)
    async with node(router, tmp_path / "n", script, **settings) as it:
        running_on = await router.post(chat("a", stream=True, max_tokens=15))
        await running_on.head()
        other = asyncio.create_task(ask(router, "b"))
        body = await running_on.body()
        assert body.rstrip().endswith(b"data: [DONE]") and b'"error"' not in body
        assert (await other)[0] == 200
        assert it.loads.begun == {"a": 1, "b": 1}
        assert (await it.model("a")).state is ModelState.ON_DISK


# --- loads ---


async def test_fault_21_fifty_first_requests_are_one_load_on_each_node(
    router: RunningRouter, tmp_path: Path
) -> None:
    script = Script(models=AB, load_delay_s=0.3, max_rows=4)
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(node(router, tmp_path / name, script)) for name in "xy"
        ]
        assert await statuses(*(ask(router, text=f"t{n}") for n in range(50))) == {200: 50}
        assert sum(each.loads.begun["a"] for each in nodes) >= 1
        assert all(each.loads.begun["a"] <= 1 for each in nodes)
        assert all(each.loads.begun["b"] == 0 for each in nodes)


async def test_fault_23_what_is_loaded_is_unloaded_by_itself_or_reported_as_pinned(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with node(router, tmp_path / "n") as it:
        answer = await it.agent.client.post("/fleet/load", json={"model": "a"})
        assert answer.status_code == 200
        assert (await ask(router, "b"))[0] == 200
        for name in "ab":
            model = await it.model(name)
            assert model.state is ModelState.READY
            assert model.pinned or model.keep_alive_s is not None


async def test_fault_24_no_other_model_answers_for_one_that_is_not_there(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with node(router, tmp_path / "n") as it:
        assert (await ask(router, "a"))[0] == 200
        status, body = await ask(router, "aa")
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (404, "model_not_found")
        assert "Did you mean a" in error["message"]
        assert it.loads.begun == {"a": 1}


async def test_fault_25_requests_that_arrive_at_any_time_of_a_load_are_answered(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with node(router, tmp_path / "n", Script(models=AB, load_delay_s=0.3)) as it:

        async def later(delay_s: float) -> tuple[int, bytes]:
            # Spread over the load and its end, by the clock: that is what the fault is about.
            await asyncio.sleep(delay_s)
            return await ask(router)

        async with asyncio.timeout(WAIT_S):
            for _ in range(2):
                assert await statuses(*(later(0.03 * n) for n in range(30))) == {200: 30}
                assert await it.unload() == 200
        assert it.loads.begun["a"] == 2


BACKGROUND = (
    ("GET", "/"),
    ("GET", "/sw.js"),
    ("GET", "/ws"),
    ("GET", "/favicon.ico"),
    ("GET", "/manifest.json"),
    ("GET", "/a"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/a"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/a/sw.js"),
    ("POST", "/v1/a"),
    ("POST", "/a/v1/chat/completions"),
    ("OPTIONS", "/v1/chat/completions"),
    ("HEAD", "/v1/models"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
)


async def test_fault_26_only_a_request_for_tokens_loads_a_model(
    router: RunningRouter, tmp_path: Path
) -> None:
    async with node(router, tmp_path / "n") as it:
        body = json.dumps(chat("a")).encode()
        for method, path in BACKGROUND:
            content = body if method == "POST" else b""
            caller = await router.send(
                method,
                path,
                content,
                authorization=f"Bearer {router.key}",
                content_length=str(len(content)),
            )
            await caller.head()
            caller.leave()
            await it.agent.client.request(method, path, content=content)
        assert {model.state for model in (await it.agent.status()).models} == {ModelState.ON_DISK}
        assert it.loads.begun.total() == 0
        assert (await ask(router))[0] == 200
        await until(lambda: it.loads.begun.total() == 1)
