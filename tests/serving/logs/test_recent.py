"""The newest lines of a log in memory."""

from __future__ import annotations

import logging
import subprocess
import sys

from serving.logs import recent
from serving.logs.formats import formatter_of
from serving.logs.recent import RecentLines


def filled(*messages: str, most_bytes: int = 1000) -> RecentLines:
    lines = RecentLines(most_bytes)
    logger = logging.Logger("router.test")
    logger.addHandler(lines)
    for message in messages:
        logger.info("%s", message)
    return lines


def texts(lines: RecentLines, most: int = 100, after: int = 0) -> list[str]:
    return [each.text for each in lines.newest(most, after)[0]]


def test_lines_are_read_after_a_number_the_oldest_first() -> None:
    lines = filled("a", "b", "c")
    assert texts(lines) == ["a", "b", "c"]
    found, has_gap = lines.newest(100, after=1)
    assert [(each.number, each.text) for each in found] == [(2, "b"), (3, "c")]
    assert found[0].at_s > 1e9 and not has_gap
    assert lines.newest(100, after=3) == ([], False)
    assert lines.newest(2, after=0) == (found, True)


def test_the_oldest_lines_leave_when_the_bytes_are_used_up() -> None:
    lines = filled("1234", "éé", "x", most_bytes=6)
    assert texts(lines) == ["éé", "x"]
    assert lines.newest(100, after=1)[1] is False
    assert lines.newest(100)[1] is True


def test_a_long_line_is_cut() -> None:
    (line,) = texts(filled("x" * 100_000, most_bytes=1_000_000))
    assert len(line) == recent.MOST_LINE_CHARS and line.endswith("…")


def test_a_message_with_wrong_arguments_is_left_out() -> None:
    lines = RecentLines()
    lines.handleError = lambda record: None  # type: ignore[method-assign]
    logger = logging.Logger("router.test")
    logger.addHandler(lines)
    logger.info("%d", "x")
    logger.info("next")
    assert texts(lines) == ["next"]


def test_lines_have_the_form_of_the_log() -> None:
    lines = RecentLines()
    lines.setFormatter(formatter_of("json"))
    logger = logging.Logger("router.test")
    logger.addHandler(lines)
    logger.warning("a node is lost")
    assert '"level": "warning"' in texts(lines)[0]


def test_a_process_keeps_what_it_logs_requests_included() -> None:
    script = """
import logging
from serving.logs import logs
from serving.logs.options import LogOptions
from serving.logs.recent import RECENT
with logs.logging_to(LogOptions()):
    logs.requests_to_stdout("text")
    logging.getLogger("router").debug("hidden")
    logging.getLogger("router").info("one")
    logging.getLogger(logs.REQUESTS).info("two")
    logging.getLogger("httpx").warning("three")
print([each.text.split(" ", 2)[2] for each in RECENT.newest(9)[0]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "['INFO one', 'INFO two', 'WARNING three']"
