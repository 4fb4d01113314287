"""Budgets of reasoning on tiny models: what is forced, and that nobody else notices."""

from pathlib import Path

import pytest

from node.ipc.generate import OutputFormat, SamplingParams
from node.ipc.messages import PartKind
from tests.mlx.driver import GREEDY, Driver, prompt

OPENED = OutputFormat("think", "none", "<|im_start|>assistant\n<think>\n")
PLAIN = OutputFormat("think", "none", "<|im_start|>assistant\n")
BUDGETS = (0, 1, 17, None)
SAMPLED = SamplingParams(temperature=1.0, seed=3)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_sequences_of_one_batch_keep_their_own_budgets(
    tiny: Path, sampling: SamplingParams
) -> None:
    with Driver(tiny) as driver:
        closing = len(driver.ids("</think>"))
        for at, budget in enumerate(BUDGETS):
            driver.submit(
                f"r{at}",
                prompt(9, at),
                sampling,
                max_tokens=60,
                output=OPENED,
                thinking_tokens=budget,
            )
        rows = driver.run()
    for at, budget in enumerate(BUDGETS):
        usage, row = rows[f"r{at}"].usage, rows[f"r{at}"]
        assert usage is not None
        kinds = [part.kind for part in row.parts]
        if budget is None:
            assert usage.reasoning_tokens == usage.completion_tokens
            assert set(kinds) == {PartKind.REASONING}
            continue
        # Characters may be torn where the budget ends.
        over = usage.reasoning_tokens - budget
        assert closing <= over <= closing + 3
        assert usage.reasoning_overflow_tokens == over
        assert kinds == sorted(kinds, reverse=True), "reasoning, and then content"
        assert kinds[-1] is PartKind.CONTENT


def test_up_to_the_budget_and_beside_it_tokens_are_as_without_it(tiny: Path) -> None:
    with Driver(tiny) as driver:
        driver.submit("free", prompt(9, 1), max_tokens=60, output=OPENED)
        driver.submit("plain", prompt(9, 2), SAMPLED, max_tokens=60)
        driver.run()
        free, plain = driver.outputs["free"], driver.outputs["plain"]
        driver.rows.clear()
        driver.submit("limited", prompt(9, 1), max_tokens=60, output=OPENED, thinking_tokens=20)
        driver.submit("beside", prompt(9, 2), SAMPLED, max_tokens=60)
        driver.submit("unlimited", prompt(9, 1), max_tokens=60, output=PLAIN, thinking_tokens=0)
        driver.run()
        driver.assert_alike(prompt(9, 2), driver.outputs["beside"], plain, SAMPLED)
        driver.assert_alike(prompt(9, 1), driver.outputs["limited"][:20], free[:20])
        driver.assert_alike(prompt(9, 1), driver.outputs["unlimited"], free)


def test_a_sequence_that_was_preempted_goes_on_with_its_end_of_reasoning(tiny: Path) -> None:
    with Driver(tiny) as driver:
        driver.submit("alone", prompt(9, 5), max_tokens=40, output=OPENED, thinking_tokens=8)
        driver.run()
        expected = driver.outputs["alone"]
        driver.rows.clear()
        driver.submit("other", prompt(9, 2), max_tokens=60)
        driver.submit("back", prompt(9, 5), max_tokens=40, output=OPENED, thinking_tokens=8)
        while len(driver.row("back").output) < 10:
            driver.step()
        assert driver.call(driver.engine._steps.preempt)
        driver.run()
        driver.assert_alike(prompt(9, 5), driver.outputs["back"], expected)
