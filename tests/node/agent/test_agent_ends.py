"""Tests the record of a request whose engine ends."""

from node.engine.scripted.script import Script
from node.ipc.messages import Accepted
from node.protocol.messages import Finished, FinishReason
from tests.node.agent.test_agent import job, running, until_finished


async def test_a_caller_who_has_left_an_engine_that_is_killed_has_cancelled() -> None:
    async with running(Script(endless_step_s=60.0)) as agent:
        events = agent.subscribe("", 0)
        await anext(events)
        batches = agent.requests.run(job(agent, "mine"), 0.05)
        while not isinstance(await anext(batches), Accepted):
            pass
        await batches.aclose()
        agent._supervisor.kill("scripted", "it hangs.")
        records = [each for each in await until_finished(events) if isinstance(each, Finished)]
        assert [record.reason for record in records] == [FinishReason.CANCELLED]
