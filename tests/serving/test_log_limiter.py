from __future__ import annotations

from serving import log_limiter as module
from serving.log_limiter import EVERY_S, LogLimiter
from tests.fakes import FakeClock


def test_a_line_is_due_once_a_minute_with_the_number_of_those_suppressed() -> None:
    clock = FakeClock()
    log_limiter = LogLimiter(clock)
    assert [
        log_limiter.due("a"),
        log_limiter.due("a"),
        log_limiter.due("b"),
        log_limiter.due("a"),
    ] == [
        True,
        False,
        True,
        False,
    ]
    assert log_limiter.suppressed("b") == ""
    clock.advance(EVERY_S)
    assert log_limiter.due("a")
    assert log_limiter.suppressed("a") == " (2 more of the kind since the last line)"
    assert log_limiter.suppressed("a") == ""


def test_it_keeps_few_subjects() -> None:
    log_limiter = LogLimiter(FakeClock())
    for index in range(3 * module.MOST_SUBJECTS):
        assert log_limiter.due(str(index))
        log_limiter.due(str(index))
    assert len(log_limiter._logged_s) <= module.MOST_SUBJECTS
    assert len(log_limiter._suppressed) <= module.MOST_SUBJECTS
