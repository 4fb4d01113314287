"""Pages of a log, as agents send them."""

import logging

from node.protocol.logs import LogLine, LogPage, page_of
from serving.logs.recent import RecentLines


def lines(*messages: str) -> RecentLines:
    recent = RecentLines()
    for message in messages:
        recent.handle(logging.makeLogRecord({"msg": message, "created": 5.0}))
    return recent


def test_a_page_continues_where_the_last_one_ended() -> None:
    recent = lines("a", "b")
    first = page_of(recent, 10)
    assert first == LogPage(
        recent.instance, 2, has_gap=False, lines=(LogLine(5.0, "a"), LogLine(5.0, "b"))
    )
    assert page_of(recent, 10, recent.instance, 2) == LogPage(
        recent.instance, 2, has_gap=False, lines=()
    )
    recent.handle(logging.makeLogRecord({"msg": "c"}))
    (line,) = page_of(recent, 10, recent.instance, 2).lines
    assert line.text == "c"


def test_lines_that_did_not_fit_are_a_gap() -> None:
    recent = lines("a", "b", "c")
    assert page_of(recent, 1).has_gap is False  # nothing was read before
    page = page_of(recent, 1, recent.instance, 1)
    assert (page.has_gap, page.last, page.lines[0].text) == (True, 3, "c")


def test_the_lines_of_another_instance_are_all_new() -> None:
    page = page_of(lines("a"), 10, "before", 700)
    assert (page.last, page.has_gap, len(page.lines)) == (1, False, 1)
