"""Computes what schedules require at a given time. No clock, no I/O."""

from dataclasses import dataclass, replace

from registry.records import ScheduleRecord
from router.lifecycle.crons import latest_due_s, next_due_s, trigger_of

LOAD, UNLOAD = "load", "unload"
OLDEST_S = 24 * 3600.0
"""Seconds after which a missed due time is recorded without acting on it."""


@dataclass(frozen=True, slots=True)
class Due:
    """A due time that has not been recorded. Only the latest one of a schedule `acts`, if it is
    recent enough."""

    what: str
    at_s: float
    acts: bool


def lines_of(record: ScheduleRecord) -> dict[str, str]:
    """Returns the schedule's cron lines by action."""
    lines = {LOAD: record.load_cron, UNLOAD: record.unload_cron}
    return {what: line for what, line in lines.items() if line is not None}


def fired_s(record: ScheduleRecord, what: str) -> float | None:
    return record.load_fired_s if what == LOAD else record.unload_fired_s


def due_times(record: ScheduleRecord, now_s: float) -> list[Due]:
    """Returns the latest unrecorded due time of each line, oldest first."""
    found = []
    for what, line in lines_of(record).items():
        after_s = fired_s(record, what) or record.created_at_s
        at_s = latest_due_s(trigger_of(line, record.timezone), after_s, now_s)
        if at_s is not None:
            found.append((at_s, what))
    found.sort()
    others_s = [at_s for at_s in (record.load_fired_s, record.unload_fired_s) if at_s is not None]
    latest_s = max([*others_s, *(at_s for at_s, _ in found)], default=0.0)
    from_s = max(latest_s, now_s - OLDEST_S)
    return [Due(what, at_s, acts=at_s >= from_s) for at_s, what in found]


def next_times(record: ScheduleRecord, now_s: float) -> dict[str, float | None]:
    """Returns the next due time of each line."""
    return {
        what: next_due_s(trigger_of(line, record.timezone), now_s)
        for what, line in lines_of(record).items()
    }


def keeps(record: ScheduleRecord) -> bool:
    """Returns True if the schedule keeps the model loaded at this time: its load was due, and its
    unload has not been since."""
    if record.unload_cron is None or record.load_fired_s is None:
        return False
    return record.unload_fired_s is None or record.unload_fired_s < record.load_fired_s


def with_due(record: ScheduleRecord, due: Due) -> ScheduleRecord:
    """Returns the schedule with the due time recorded as pending."""
    pending = due.what if due.acts else None
    if due.what == LOAD:
        return replace(record, load_fired_s=due.at_s, pending=pending)
    return replace(record, unload_fired_s=due.at_s, pending=pending)
