from __future__ import annotations

from serving import seldom as module
from serving.seldom import EVERY_S, Seldom
from tests.fakes import FakeClock


def test_a_line_is_due_once_a_minute_and_says_how_many_were_not() -> None:
    clock = FakeClock()
    seldom = Seldom(clock)
    assert [seldom.due("a"), seldom.due("a"), seldom.due("b"), seldom.due("a")] == [
        True,
        False,
        True,
        False,
    ]
    assert seldom.more("b") == ""
    clock.advance(EVERY_S)
    assert seldom.due("a")
    assert seldom.more("a") == " (2 more of the kind since the last line)"
    assert seldom.more("a") == ""


def test_it_holds_few_subjects() -> None:
    seldom = Seldom(FakeClock())
    for index in range(3 * module.MOST_SUBJECTS):
        assert seldom.due(str(index))
        seldom.due(str(index))
    assert len(seldom._told_s) <= module.MOST_SUBJECTS
    assert len(seldom._held_back) <= module.MOST_SUBJECTS
