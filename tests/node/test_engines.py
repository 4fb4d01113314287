"""Loads and their ends, with real engine processes that follow a script."""

from node.engine.script import Script
from node.protocol.messages import ModelState
from tests.node.test_supervisor import world


async def test_a_load_that_is_cancelled_before_its_first_step_leaves_the_model_on_disk() -> None:
    async with world(Script(load_delay_s=0.0)) as it:
        await it.entry()
        it.supervisor.begin_load("scripted")
        it.supervisor.cancel_load("scripted")
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
