"""Log probabilities are those of the distribution that was sampled from, and cost other sequences
nothing."""

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from node.engine.decoding.picker import Picked
from node.engine.sampling.sampler import BatchSampler, DeviceLogprobs, RowSampling
from node.ipc.generate import SamplingParams
from node.ipc.messages import TokenLogprob
from tests.mlx.driver import GREEDY, Driver, place, prompt
from tests.mlx.likeness import NEAR_LOGPROB
from tests.mlx.sampling.test_sampler import CASES, LOGITS, VOCAB_SIZE, fields, reference

pytestmark = pytest.mark.mlx

BATCH = mx.array(LOGITS[None].astype(np.float32))


def likeliest(params: SamplingParams, count: int) -> tuple[int, DeviceLogprobs]:
    """Returns the token that one sequence draws, and the log probabilities of those that it could
    have drawn."""
    sampler = BatchSampler([RowSampling.of(params, count)], VOCAB_SIZE)
    tokens, ((places, found),) = sampler.sample(BATCH)
    assert places == [0]
    return int(np.array(tokens)[0]), found


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), *CASES])
def test_they_are_of_the_distribution_that_the_settings_define(params: SamplingParams) -> None:
    seeded = SamplingParams(**{**fields(params), "seed": 1})
    # Of a greedy sequence the likeliest are reported as if it were not, since it has no other.
    is_greedy = params.temperature == 0
    chances = reference(replaced(temperature=1.0) if is_greedy else params)
    token, found = likeliest(seeded, 5)
    assert np.array(found.own)[0] == pytest.approx(math.log(chances[token]), abs=1e-4)
    order = np.argsort(-chances)[:5]
    could = [int(each) for each in order if chances[each] > 0]
    assert np.array(found.tokens)[0].tolist()[: len(could)] == could
    logprobs = np.array(found.logprobs)[0].tolist()
    assert logprobs[: len(could)] == pytest.approx(np.log(chances[could]), abs=1e-4)
    assert all(each == -math.inf for each in logprobs[len(could) :])


def replaced(**changed: float) -> SamplingParams:
    return SamplingParams(**{**fields(SamplingParams()), **changed})


@pytest.mark.parametrize("params", [GREEDY, replaced(top_p=0.9), replaced(temperature=1.5)])
def test_more_than_the_vocabulary_are_cut_and_none_are_none(params: SamplingParams) -> None:
    _, found = likeliest(params, VOCAB_SIZE + 9)
    assert found.tokens.shape == found.logprobs.shape == (1, VOCAB_SIZE)
    assert np.exp(np.array(found.logprobs)).sum() == pytest.approx(1.0, abs=1e-4)
    _, found = likeliest(params, 0)
    assert found.tokens.shape == (1, 0) and found.own.shape == (1,)


def test_tokens_are_the_same_with_log_probabilities_and_without() -> None:
    params = [SamplingParams(**{**fields(each), "seed": 9}) for each in CASES]
    batch = mx.broadcast_to(BATCH, (len(params), VOCAB_SIZE))
    plain, _ = BatchSampler([RowSampling.of(each) for each in params], VOCAB_SIZE).sample(batch)
    rows = [RowSampling.of(each, at if at % 2 else None) for at, each in enumerate(params)]
    tokens, found = BatchSampler(rows, VOCAB_SIZE).sample(batch)
    assert np.array(tokens).tolist() == np.array(plain).tolist()
    assert sorted(at for places, _ in found for at in places) == [*range(1, len(params), 2)]


def test_a_removed_sequence_removes_its_candidates() -> None:
    rows = [RowSampling.of(GREEDY, count) for count in (1, None, 2, 3)]
    ids = mx.array([[5], [7], [9], [11]])
    logits = mx.where(mx.arange(VOCAB_SIZE)[None] == ids, 9.0, 0.0)
    tokens, found = BatchSampler(rows, VOCAB_SIZE).sample(logits)
    picked = Picked(tokens, [([*places], each) for places, each in found])
    picked.keep([1, 3])
    kept, logprobs = picked.read()
    assert kept == [7, 11]
    assert {at: likely.tokens[0] for at, likely in logprobs.items()} == {1: 11}


def logprobs_of(engine: Driver, uid: str) -> list[TokenLogprob]:
    return [each for part in engine.rows[uid].parts for each in part.logprobs]


def expected(engine: Driver, tokens: tuple[int, ...], uid: str) -> np.ndarray:
    """Log probabilities [output, V] by the bare model at temperature 1."""
    output = engine.outputs[uid]

    def run() -> np.ndarray:
        logits = engine.engine._model.network(mx.array([[*tokens, *output[:-1]]]))[0]
        logits = logits[len(tokens) - 1 :].astype(mx.float32)
        return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    return engine.call(run)


def test_sequences_get_their_log_probabilities_and_others_generate_what_they_do_alone(
    tiny: Path,
) -> None:
    counts = {"none": None, "own": 0, "one": 1, "five": 5}
    with Driver(tiny) as engine:
        tokens = {uid: prompt(30 + at, at) for at, uid in enumerate(counts)}
        for uid, count in counts.items():
            engine.submit(uid, tokens[uid], max_tokens=12, logprobs=count)
        engine.run()
        for uid, count in counts.items():
            output = engine.outputs[uid]
            engine.assert_greedy(uid, tokens[uid])
            content = [token for token in output if token not in engine.engine._model.end_tokens]
            logprobs = logprobs_of(engine, uid)
            assert len(logprobs) == (0 if count is None else len(content))
            if count is None:
                continue
            chances = expected(engine, tokens[uid], uid)
            for each, token, row in zip(logprobs, content, chances, strict=False):
                assert each.token.logprob == pytest.approx(row[token], abs=NEAR_LOGPROB)
                best = np.sort(row)[::-1][:count]
                top = [other.logprob for other in each.top]
                assert top == pytest.approx(best, abs=NEAR_LOGPROB)
            data = b"".join(each.token.data for each in logprobs)
            assert data.decode("utf-8", "replace") == engine.rows[uid].text


def test_they_follow_penalties(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.alone(prompt(30, 1), max_tokens=1)
        (first,) = engine.outputs.pop("alone")
        barred = SamplingParams(temperature=0.0, logit_bias=((first, -1e9),))
        engine.submit("a", prompt(30, 1), barred, max_tokens=1, logprobs=20)
        engine.run()
        (logprob,) = logprobs_of(engine, "a")
        _, data = engine.engine._model.vocabulary.spelled(first)
        assert logprob.token == logprob.top[0]
        assert data not in [each.data for each in logprob.top]


def test_no_log_probability_is_of_a_token_that_could_not_be_drawn(tiny: Path) -> None:
    with Driver(tiny) as engine:
        sampling = SamplingParams(temperature=1.0, top_k=3, seed=4)
        engine.submit("a", prompt(30, 1), sampling, max_tokens=8, logprobs=20)
        engine.run()
        for logprob in logprobs_of(engine, "a"):
            assert len(logprob.top) == 3
            assert sum(math.exp(each.logprob) for each in logprob.top) == pytest.approx(1, abs=1e-4)
            assert logprob.token in logprob.top


def test_each_choice_has_its_own_log_probabilities(tiny: Path) -> None:
    with Driver(tiny) as engine:
        sampling = SamplingParams(temperature=1.0, seed=4)
        engine.submit("n", prompt(30, 1), sampling, max_tokens=8, logprobs=1, choices=3)
        engine.submit("gone", prompt(30, 2), max_tokens=30, logprobs=1)
        engine.steps_until("gone", 2)
        engine.cancel("gone")
        engine.run()
        for choice in range(3):
            uid = place("n", choice)
            chances = expected(engine, prompt(30, 1), uid)
            for logprob, token, row in zip(
                logprobs_of(engine, uid), engine.outputs[uid], chances, strict=False
            ):
                assert logprob.token.logprob == pytest.approx(row[token], abs=NEAR_LOGPROB)
