"""Tests the criteria of `likeness` for the same answer on a GPU, on any device."""

from pathlib import Path

import numpy as np
import pytest

from node.ipc.generate import SamplingParams
from tests.mlx import likeness
from tests.mlx.driver import Driver, bare_logits, prompt
from tests.mlx.likeness import NEAR, draw_gap, greedy_gap, pair_gap, tie_gap

pytestmark = pytest.mark.mlx

LOGITS = np.array([[0.0, 5.0, 4.99, -3.0], [4.0, 0.0, 1.0, 2.0]])
WARM = SamplingParams(temperature=1.0, seed=4)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are compared as on a GPU."""
    monkeypatch.setattr(likeness, "DEVICE", "gpu")


def test_a_token_that_is_nearly_as_likely_is_near() -> None:
    assert greedy_gap(LOGITS, [1, 0]) == 0.0
    assert 0 < greedy_gap(LOGITS, [2, 0]) < NEAR
    assert greedy_gap(LOGITS, [1, 3]) > NEAR


def test_a_draw_at_the_edge_of_two_tokens_is_near() -> None:
    # Token 3 has next to no share, so that a draw passes over it.
    assert draw_gap(LOGITS[0], 1, 2, 1.0) == pytest.approx(0.0)
    assert draw_gap(LOGITS[0], 2, 1, 1.0) == pytest.approx(0.0)
    assert draw_gap(LOGITS[1], 0, 2, 1.0) < NEAR
    assert draw_gap(LOGITS[0], 0, 2, 1.0) > NEAR


@pytest.mark.usefixtures("on_gpu")
def test_an_answer_is_like_the_bare_models_but_for_near_ties(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("a", prompt(30, 1), max_tokens=8)
        engine.run()
        engine.assert_greedy("a", prompt(30, 1), 8)
        engine.outputs["a"][5] += 1
        with pytest.raises(AssertionError):
            engine.assert_greedy("a", prompt(30, 1), 8)
        with pytest.raises(AssertionError):
            engine.assert_greedy("a", prompt(30, 1), 7)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), WARM])
@pytest.mark.usefixtures("on_gpu")
def test_answers_are_alike_up_to_a_near_tie(tiny: Path, sampling: SamplingParams) -> None:
    with Driver(tiny) as engine:
        engine.submit("a", prompt(30, 1), sampling, max_tokens=8)
        engine.run()
        output = engine.outputs["a"]
        engine.assert_alike(prompt(30, 1), output, list(output), sampling)
        other = [*output[:5], (output[5] + 200) % 512, *output[6:]]
        with pytest.raises(AssertionError):
            engine.assert_alike(prompt(30, 1), output, other, sampling)


@pytest.mark.usefixtures("on_gpu")
def test_an_answer_that_only_begins_as_another_is_not_like_it(tiny: Path) -> None:
    with Driver(tiny) as engine, pytest.raises(AssertionError, match="the beginning"):
        engine.assert_alike(prompt(30, 1), [5, 6], [5, 6, 7])


def test_answers_that_a_grammar_constrains_part_where_two_that_it_allows_are_near() -> None:
    # The likeliest token is none of them.
    assert pair_gap(np.array([9.0, 1.0, 1.001, -3.0]), 1, 2) < NEAR
    assert tie_gap(np.array([9.0, 1.0, 1.001, -3.0]), 1, 2) > NEAR
    assert pair_gap(LOGITS[1], 0, 3) > NEAR


@pytest.mark.usefixtures("on_gpu")
def test_penalties_count_where_answers_part(tiny: Path) -> None:
    tokens = prompt(30, 1)
    with Driver(tiny) as engine:
        logits = engine.call(lambda: bare_logits(engine.engine._model, tokens, [0]))[-1]
        second, likeliest = np.argsort(logits)[-2:].tolist()
        lead = float(logits[likeliest] - logits[second])
        even = SamplingParams(temperature=0.0, logit_bias=((second, lead),))
        engine.assert_alike(tokens, [second], [likeliest], even)
        with pytest.raises(AssertionError):
            engine.assert_alike(tokens, [second], [likeliest])
