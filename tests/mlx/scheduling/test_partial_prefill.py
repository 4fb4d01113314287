"""Tests what is stored of a prefill whose caller disconnects in the middle of it."""

from pathlib import Path

import pytest

from node.engine.scheduling.prefix_reuse import MIN_PARTIAL_TOKENS
from tests.mlx.driver import prompt
from tests.mlx.scheduling.test_prefix_reuse import Counted

pytestmark = pytest.mark.mlx

LONG = prompt(700, 8)


def left_at(engine: Counted, uid: str, tokens: tuple[int, ...], least_tokens: int) -> int:
    """Cancels the prompt once so much of it is prefilled; how much that was."""
    engine.submit(uid, tokens, boundaries=(650,))
    row = engine.row(uid)
    while row.done_tokens < least_tokens:
        engine.step()
    engine.cancel(uid)
    return row.done_tokens


def test_the_next_request_goes_on_at_the_end_of_the_last_chunk(kind: Path) -> None:
    with Counted(kind) as engine:
        done_tokens = left_at(engine, "left", LONG, 300)
        assert 300 <= done_tokens < 600
        assert engine.ask("again", LONG) == done_tokens


def test_a_sequence_that_leaves_others_in_their_prefill_is_stored_too(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.submit("stays", prompt(640, 9), max_tokens=4)
        done_tokens = left_at(engine, "left", LONG[:640], 300)
        engine.run()
        assert engine.ask("again", LONG) == done_tokens
        engine.assert_greedy("stays", prompt(640, 9), 4)


def test_what_may_not_be_reused_is_not_kept(kind: Path) -> None:
    with Counted(kind) as engine:
        engine.submit("left", LONG, reusable_tokens=280)
        row = engine.row("left")
        while row.done_tokens < 400:
            engine.step()
        engine.cancel("left")
        # At the cut that was planned, and not behind it.
        assert engine.ask("again", LONG) == 280


def test_a_beginning_that_is_quick_to_prefill_is_not_kept(tiny: Path) -> None:
    with Counted(tiny) as engine:
        assert left_at(engine, "left", LONG, 100) < MIN_PARTIAL_TOKENS
        assert engine.ask("again", LONG) == 0
