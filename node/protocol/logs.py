"""An agent's newest log lines, as a router reads them: `GET /fleet/logs?instance=ID&after=NUMBER`.

The response is a `LogPage`. Of another instance, lines are counted anew, and all are new.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import Count, UnixSeconds, Word
from serving.logs.recent import MOST_LINE_CHARS, RecentLines

PATH_LOGS = "/fleet/logs"
MOST_LINES = 10_000
"""Most lines of one response."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    at_s: UnixSeconds
    text: Annotated[str, Meta(max_length=MOST_LINE_CHARS)]
    """The line in the form of the agent's log, text or JSON."""


class LogPage(msgspec.Struct, frozen=True):
    """The newest lines of a process, the oldest first."""

    instance: Word
    """Instance of the process that the lines belong to."""
    last: Count
    """Number of the last line; the next page begins after it."""
    has_gap: bool
    """True if there are lines between those that were read before and these."""
    lines: Annotated[tuple[LogLine, ...], Meta(max_length=MOST_LINES)]


def page_of(recent: RecentLines, most: int, instance: str = "", after: int = 0) -> LogPage:
    """The newest lines, at most so many, that follow line `after` of `instance`."""
    if instance != recent.instance:
        after = 0
    found, has_gap = recent.newest(most, after)
    lines = tuple(LogLine(each.at_s, each.text) for each in found)
    last = found[-1].number if found else max(after, 0)
    return LogPage(recent.instance, last, has_gap and after > 0, lines)
