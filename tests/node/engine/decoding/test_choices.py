"""Tests which state the choices of a request share, and which each has of its own."""

from node.engine.decoding.choices import Tally, choice_of
from node.ipc.generate import GenerateRequest, SamplingParams


def test_the_first_choice_is_the_request_itself() -> None:
    request = GenerateRequest("u", (1,), 5, SamplingParams(seed=3), choices=2)
    assert choice_of(request, 0) is request


def test_each_choice_has_an_id_and_a_seed_of_its_own() -> None:
    request = GenerateRequest("u", (1,), 5, SamplingParams(seed=3), choices=3)
    each = [choice_of(request, choice) for choice in range(3)]
    assert [choice.uid for choice in each] == ["u", "u-1", "u-2"]
    assert [choice.sampling.seed for choice in each] == [3, 4, 5]
    unseeded = choice_of(GenerateRequest("u", (1,), 5, choices=2), 1)
    assert unseeded.sampling.seed is None


def test_a_tally_sums_the_usage_of_the_choices() -> None:
    tally = Tally(2)
    tally.note_token(5.0)
    tally.note_token(6.0)
    assert tally.first_token_s == 5.0
    assert not tally.end(10, 4, 1)
    assert tally.end(20, 3, 0)
    assert (tally.completion_tokens, tally.reasoning_tokens) == (30, 7)
    assert (tally.reasoning_overflow_tokens, tally.open_choices) == (1, 0)
