"""What schedules ask for at a moment. No clock, no I/O."""

from dataclasses import dataclass, replace

from registry.records import ScheduleRecord
from router.lifecycle.crons import latest_due_s, next_due_s, trigger_of

LOAD, UNLOAD = "load", "unload"
OLDEST_S = 24 * 3600.0
"""A due time that was missed for longer is noted, but not acted upon."""


@dataclass(frozen=True, slots=True)
class Due:
    """A due time that has not been noted. Of a schedule the latest `acts`, if young enough."""

    what: str
    at_s: float
    acts: bool


def lines_of(record: ScheduleRecord) -> dict[str, str]:
    """Its cron lines, by what they do."""
    lines = {LOAD: record.load_cron, UNLOAD: record.unload_cron}
    return {what: line for what, line in lines.items() if line is not None}


def fired_s(record: ScheduleRecord, what: str) -> float | None:
    return record.load_fired_s if what == LOAD else record.unload_fired_s


def due_times(record: ScheduleRecord, now_s: float) -> list[Due]:
    """The latest due time of each line that was not noted, oldest first."""
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
    """When each line is due next."""
    return {
        what: next_due_s(trigger_of(line, record.timezone), now_s)
        for what, line in lines_of(record).items()
    }


def keeps(record: ScheduleRecord) -> bool:
    """Whether the model is kept now: its load was due, and it has an unload that was not since."""
    if record.unload_cron is None or record.load_fired_s is None:
        return False
    return record.unload_fired_s is None or record.unload_fired_s < record.load_fired_s


def noted(record: ScheduleRecord, due: Due) -> ScheduleRecord:
    """The schedule once the due time is noted, in place of what was pending."""
    pending = due.what if due.acts else None
    if due.what == LOAD:
        return replace(record, load_fired_s=due.at_s, pending=pending)
    return replace(record, unload_fired_s=due.at_s, pending=pending)
