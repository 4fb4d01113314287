"""Every kind of model in the engine: together, alone and from the cache, sequences generate the
same, token for token."""

from pathlib import Path

import pytest

from tests.mlx.driver import Driver, make_spec, prompt

pytestmark = pytest.mark.mlx

LENGTHS = (1, 7, 33, 257)
ANSWER_TOKENS = 12


def test_sequences_of_unlike_lengths_generate_together_what_the_bare_model_does_alone(
    kind: Path,
) -> None:
    with Driver(kind) as engine:
        prompts = {f"{length}": prompt(length, length) for length in LENGTHS}
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=ANSWER_TOKENS)
        engine.run()
        for uid, tokens in prompts.items():
            engine.assert_greedy(uid, tokens, ANSWER_TOKENS)


def test_sequences_that_join_and_leave_change_nothing_for_the_others(kind: Path) -> None:
    with Driver(kind, spec=make_spec(kind, prefill_chunk_tokens=48)) as engine:
        lengths = zip("abcd", LENGTHS, strict=True)
        prompts = {name: prompt(length, length) for name, length in lengths}
        engine.submit("b", prompts["b"], max_tokens=30)
        engine.steps_until("b", 3)
        engine.submit("d", prompts["d"], max_tokens=ANSWER_TOKENS)
        engine.submit("gone", prompt(90, 5), max_tokens=30)
        engine.step()
        engine.submit("a", prompts["a"], max_tokens=4)
        engine.step()
        engine.cancel("gone")
        engine.submit("c", prompts["c"], max_tokens=ANSWER_TOKENS)
        rows = engine.run()
        assert all(row.finish is not None for row in rows.values())
        for uid, tokens in prompts.items():
            engine.assert_greedy(uid, tokens)
