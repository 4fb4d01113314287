"""Parses cron lines and computes their due times. No clock."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WINDOW_S = 60.0


class InvalidCron(ValueError):
    """The line is not a valid cron line, or its time zone does not exist."""


class UnknownTimezone(InvalidCron):
    """There is no such time zone."""


def trigger_of(line: str, timezone: str) -> CronTrigger:
    """Parses a line of five fields. Raises `InvalidCron` with a sentence."""
    fields = line.split()
    if len(fields) != 5:
        raise InvalidCron(
            f"{line!r} is not a cron line; one has five fields, such as '0 8 * * 1-5'."
        )
    names = ("minute", "hour", "day", "month")
    try:
        parts = dict(zip(names, fields, strict=False))
        return CronTrigger(day_of_week=_weekdays(fields[4]), timezone=timezone, **parts)
    except ZoneInfoNotFoundError:
        raise UnknownTimezone(
            f"There is no time zone {timezone!r}; an example is Europe/Berlin."
        ) from None
    except (ValueError, TypeError) as error:
        raise InvalidCron(f"{line!r} is not a cron line: {error}.") from None


def next_due_s(trigger: CronTrigger, after_s: float) -> float | None:
    """Returns the first due time after that; None if there is none."""
    after = datetime.fromtimestamp(after_s, trigger.timezone) + timedelta(microseconds=1)
    due = trigger.get_next_fire_time(None, after)
    return None if due is None else float(due.timestamp())


def latest_due_s(trigger: CronTrigger, after_s: float, until_s: float) -> float | None:
    """Returns the last due time after `after_s` and up to `until_s`; None if there is none."""
    found, due, span_s = None, next_due_s(trigger, after_s), _WINDOW_S
    if due is None or due > until_s:
        return None
    while found is None:
        due = next_due_s(trigger, max(after_s, until_s - span_s))
        while due is not None and due <= until_s:
            found, due = due, next_due_s(trigger, due)
        span_s *= 8
    return found


def _weekdays(field: str) -> str:
    """Converts days to names, since APScheduler counts them from Monday and cron from Sunday."""
    return ",".join(day for part in field.split(",") for day in _days_of(part.lower()))


def _days_of(part: str) -> list[str]:
    days, _, step = part.partition("/")
    first, dash, last = days.partition("-")
    if days == "*":
        if not step:
            return ["*"]
        low, high = 0, 6
    else:
        low = _day(first)
        high = _day(last) if dash else (6 if step else low)
    if high < low:
        high += 7
    return [_DAYS[day % 7] for day in range(low, high + 1, int(step or 1))]


def _day(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    number = int(text)
    if not 0 <= number <= 7:
        raise ValueError(f"{number} is no day of the week, which are 0 to 7")
    return number
