"""Estimates of the prefixes of servers that do not report them."""

import random

import pytest

from router.coverage import NOT_COVERED, Coverage
from router.fleet.estimated_prefixes import EstimatedPrefixes
from tests.router.fleet.test_prefix_index import chain


def test_a_served_prompt_is_taken_to_be_cached_by_its_bytes() -> None:
    guesses = EstimatedPrefixes()
    guesses.on_served("f", chain(1, 2, 3), 10)
    # The last token is computed by the server that answers.
    assert guesses.coverage("f", chain(1, 2, 3)) == Coverage(3, 9, 9)
    assert guesses.coverage("f", chain(1, 2, 9)) == Coverage(2, 6, 6)
    assert guesses.coverage("f", chain(9)) == NOT_COVERED
    assert guesses.coverage("g", chain(1)) == NOT_COVERED


def test_an_empty_chain_leaves_no_guess() -> None:
    guesses = EstimatedPrefixes()
    guesses.on_served("f", chain(), 10)
    assert guesses.entries_by_node() == {}


def test_the_least_recently_served_prompts_are_given_up_from_their_ends() -> None:
    guesses = EstimatedPrefixes(max_tokens=700)
    guesses.on_served("f", chain(1, 2, 3), 300)
    guesses.on_served("f", chain(1, 12, 13), 300)
    assert guesses.entries_by_node() == {"f": 5}
    guesses.on_served("f", chain(21, 22, 23), 300)
    assert guesses.coverage("f", chain(1, 2, 3)) == Coverage(2, 200, 200)
    guesses.on_served("f", chain(1, 2), 200)
    guesses.on_served("f", chain(31, 32), 200)
    assert guesses.coverage("f", chain(1, 12, 13)) == Coverage(1, 100, 100)
    assert guesses.coverage("f", chain(1, 2, 3)) == Coverage(2, 200, 200)


def test_of_a_prompt_longer_than_all_room_its_beginning_is_kept() -> None:
    guesses = EstimatedPrefixes(max_tokens=250)
    guesses.on_served("f", chain(1, 2, 3, 4), 400)
    assert guesses.coverage("f", chain(1, 2, 3, 4)) == Coverage(2, 200, 200)


@pytest.mark.parametrize("prompt_tokens", [0, 1])
def test_prompts_that_are_reported_with_hardly_a_token_are_bounded_by_their_positions(
    prompt_tokens: int,
) -> None:
    guesses = EstimatedPrefixes(max_positions=4)
    for first in range(10, 100, 10):
        guesses.on_served("f", chain(first, first + 1, first + 2), prompt_tokens)
        assert guesses.entries_by_node()["f"] <= 4
    assert guesses.coverage("f", chain(90, 91, 92)).positions == 3
    assert guesses.coverage("f", chain(80, 81, 82)).positions == 1


def test_nodes_are_forgotten_alone() -> None:
    guesses = EstimatedPrefixes()
    guesses.on_served("f", chain(1), 10)
    guesses.on_served("g", chain(1), 10)
    guesses.forget_node("f")
    guesses.forget_node("f")
    assert guesses.entries_by_node() == {"g": 1}


def test_what_is_kept_stays_closed_under_prefixes_and_within_its_bound() -> None:
    rng = random.Random(1)
    guesses = EstimatedPrefixes(max_tokens=2000)
    served = []
    for _ in range(500):
        path: list[int] = []
        for _ in range(rng.randint(1, 12)):
            path.append(hash((*path, rng.randint(0, 2))) & (1 << 60) - 1)
        served.append(path)
        guesses.on_served("f", chain(*path), 100 * len(path) + rng.randint(-20, 20))
        assert guesses._nodes["f"].tokens <= 2000
        cached = guesses._nodes["f"].positions
        assert guesses._nodes["f"].tokens == sum(own for _, own in cached.values())
        for known in served:
            ends = [each in cached for each in known]
            assert ends == sorted(ends, reverse=True)
