"""Loads and their ends, with real engine processes that follow a script."""

import msgspec
import pytest

from node.engine.scripted.script import Script
from node.engines.link import EngineLink
from node.engines.load_history import LAST_COOL_DOWN_S, LOAD_COOL_DOWN_S
from node.engines.processes import LEAST_CHUNK_TOKENS, _in_smaller_chunks
from node.errors import EngineDied, LoadFailure
from node.ipc.child_process import ChildProcess
from node.ipc.generate import GenerateRequest
from node.ipc.messages import EngineSpec, Loaded, MemoryLease
from node.protocol.messages import ModelState
from tests.node.engines.test_supervisor import world


async def test_a_load_that_is_cancelled_before_its_first_step_leaves_the_model_on_disk() -> None:
    async with world(Script(load_delay_s=0.0)) as it:
        await it.entry()
        it.supervisor._swapper._load("scripted")
        it.supervisor._swapper._cancel("scripted")
        await it.until(ModelState.ON_DISK)
        assert it.supervisor.budget.leased_bytes == 0
        await it.touch()
        assert it.states.count(ModelState.LOADING) == 2


async def test_no_load_has_the_number_of_one_before_its_agents_restart() -> None:
    numbers = []
    for _ in range(2):
        async with world() as it:
            await it.touch()
            numbers.append(it.supervisor.status()[0].generation)
    assert numbers[0] < numbers[1]


async def test_loads_that_fail_one_after_another_are_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def torn(link: EngineLink, spec: object, spare: object) -> None:
        raise LoadFailure("Torn.")

    monkeypatch.setattr(EngineLink, "start", torn)
    async with world() as it:
        entry = await it.entry()
        it.clock.stopped_s = it.clock()

        async def fail() -> float:
            with pytest.raises(LoadFailure):
                await it.touch()
            return it.supervisor.status()[0].retry_after_s

        for wait_s in (LOAD_COOL_DOWN_S, 2 * LOAD_COOL_DOWN_S):
            assert await fail() == pytest.approx(wait_s)
            # Refused, not tried.
            it.clock.late_s += wait_s - 0.1
            assert await fail() == pytest.approx(0.1)
            it.clock.late_s += 0.1
        slot = it.supervisor._slots.of(entry)
        slot.loads.cool_down_s = LAST_COOL_DOWN_S - 1.0
        assert await fail() == pytest.approx(LAST_COOL_DOWN_S)
        # Who requests a load itself is not made to wait, and what fails again still cools down.
        it.supervisor.retry_now(entry)
        assert await fail() == pytest.approx(LAST_COOL_DOWN_S)
        assert it.states.count(ModelState.LOADING) == 4
        await it.supervisor.unload(entry)
        assert await fail() == pytest.approx(LOAD_COOL_DOWN_S)


async def test_a_load_that_succeeds_ends_the_cooling_down() -> None:
    async with world() as it:
        slot = it.supervisor._slots.of(await it.entry())
        slot.loads.cool_down_s = LAST_COOL_DOWN_S
        await it.touch()
        assert slot.loads.cool_down_s == 0.0


async def test_an_engine_whose_gpu_had_too_much_to_do_is_started_with_smaller_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = EngineLink.start
    chunks: list[int] = []

    async def spy(
        link: EngineLink, spec: EngineSpec, waiting: ChildProcess | None = None
    ) -> Loaded:
        chunks.append(spec.prefill_chunk_tokens)
        return await start(link, spec, waiting)

    monkeypatch.setattr(EngineLink, "start", spy)
    for text, shares in (("Impacting Interactivity", (1, 2, 4)), ("Internal Error", (1, 1, 1))):
        chunks.clear()
        script = Script(step_failure_after_tokens=0, step_failure_text=f"[METAL] {text}")
        async with world(script) as it:
            for _ in shares:
                handle = await it.touch()
                row = handle.link.submit(GenerateRequest("a", (1,), 1), lambda row, last: None)
                with pytest.raises(EngineDied):
                    await row.until_accepted()
                    await row.next()
                await it.until(ModelState.ON_DISK)
            slot = it.supervisor._slots.of(await it.entry())
        assert chunks == [chunks[0] // share for share in shares]
        assert slot.loads.failures == 0
    assert _in_smaller_chunks(msgspec.structs.replace(SPEC, prefill_chunk_tokens=100), 9) == SPEC


SPEC = EngineSpec("text", "m", "", 1, MemoryLease(0, 0, 0), prefill_chunk_tokens=LEAST_CHUNK_TOKENS)
