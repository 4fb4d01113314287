"""The order of rows in a generator, and how many prompts go in at once."""

import pytest

from node.engine.rows import OrderError, RowOrder


def order(**prompts: int) -> RowOrder[str]:
    rows: RowOrder[str] = RowOrder(chunk_tokens=10, step_tokens=40)
    for number, (name, tokens) in enumerate(prompts.items()):
        rows.insert(number, name, tokens)
    return rows


def test_a_prompt_of_one_token_decodes_in_the_step_that_admits_it() -> None:
    rows = order(a=1)
    assert rows.sampled_next() == [("a",)]
    rows.advance([], [])
    assert rows.sampled_next() == [("a",)]
    rows.advance([0], [0])
    assert rows.sampled_next() == []
    assert len(rows) == 0


def test_longer_prompts_decode_when_only_their_last_token_is_left() -> None:
    rows = order(a=21, b=2, c=12)
    assert rows.sampled_next() == []
    rows.advance([], [])
    assert rows.sampled_next() == [("b",)]
    rows.advance([], [])
    assert rows.sampled_next() == [("b",), ("a", "c")]
    rows.advance([1], [])
    assert rows.sampled_next() == [("b", "a", "c")]


def test_rows_leave_in_every_phase() -> None:
    rows = order(a=1, b=1, c=5, d=50)
    rows.advance([], [])
    for number in (0, 3, 99):
        rows.remove(number)
    assert rows.sampled_next() == [("b",), ("c",)]
    assert len(rows) == 2


@pytest.mark.parametrize("numbers", [[1, 0], [0], [0, 1, 2], []])
def test_notices_another_order(numbers: list[int]) -> None:
    rows = order(a=1, b=1)
    rows.advance([], [])
    with pytest.raises(OrderError):
        rows.advance(numbers, [])


def test_prompts_of_one_step_are_bounded_with_their_padding() -> None:
    assert order().has_room(10_000)
    assert order(a=100, b=100, c=100).has_room(2)
    assert not order(a=100, b=2, c=2, d=2).has_room(2)
    assert order(a=2, b=2, c=2, d=2).has_room(7)
    rows = order(a=11, b=100)
    assert not order(a=11, b=100, c=2, d=2).has_room(2)
    rows.advance([], [])
    rows.advance([], [])
    assert rows.has_room(100)
