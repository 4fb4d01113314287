"""`router keys update` and `rotate`, and the limits that several verbs read."""

import math
import re
from typing import Any

from router.api.admin.key_views import KeyRow, LimitsRow, NewKey
from router.commands import console, durations, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row
from serving.terminal.output import put
from serving.whole_file import written_whole

MAX_LIMIT = 1_000_000_000_000
_NUMBER = re.compile(r"(?P<digits>[0-9]{1,15}(?:\.[0-9]{1,6})?)(?P<unit>[kKmM]?)")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def read_limits(
    requests_per_minute: str | None,
    tokens_per_minute: str | None,
    tokens_per_day: str | None,
    concurrent_requests: str | None,
) -> dict[str, int | None]:
    """Parses the limits that are given; None removes one."""
    given = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "concurrent_requests": concurrent_requests,
    }
    return {name: _limit(name, text) for name, text in given.items() if text is not None}


def _limit(name: str, text: str) -> int | None:
    if text == "none":
        return None
    found = _NUMBER.fullmatch(text.replace(",", ""))
    number = float(found["digits"]) * _UNITS[found["unit"].lower()] if found else math.nan
    if not (1 <= number <= MAX_LIMIT and number == int(number)):
        option = "--" + name.replace("_", "-")
        raise CommandFailed(
            f"{option} is a whole number from 1, such as 60, 50k or 2M, or none; {text!r} is not."
        )
    return int(number)


def split(given: list[str]) -> list[str]:
    """Splits lists that are given with commas."""
    return [part.strip() for each in given for part in each.split(",")]


def read_change(
    scopes: list[str] | None,
    team: str | None,
    models: list[str] | None,
    limits: dict[str, int | None],
    expires_days: str | None,
    priority: str | None,
) -> dict[str, Any]:
    """The body of a change, with the fields that are given."""
    body: dict[str, Any] = {}
    if scopes:
        body["scopes"] = split(scopes)
    if team is not None:
        body["team"] = None if team == "none" else team
    if models:
        body["models"] = None if models == ["all"] else models
    if limits:
        body["limits"] = limits
    if expires_days is not None:
        body["expires_in_days"] = _days(expires_days)
    if priority is not None:
        body["priority"] = priority
    if not body:
        raise CommandFailed("Nothing to change is given; `router keys update --help` lists it.")
    return body


def _days(text: str) -> float | None:
    if text == "never":
        return None
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0.001 <= days <= 3650:
        raise CommandFailed(
            f"--expires-days is a number of days up to 3650, or never; {text!r} is neither."
        )
    return days


def update(client: AdminClient, name: str, body: dict[str, Any], *, as_json: bool) -> None:
    response = client.patch(f"/keys/{in_path(name)}", body)
    if as_json:
        console.print_json(response)
        return
    row = read_row(KeyRow, response)
    console.print_line(f"Changed the key {row.name}: {summary(row)}.")


def rotate(client: AdminClient, name: str, grace: str | None, *, as_json: bool) -> None:
    grace_s = 0.0 if grace is None else durations.read_s(grace)
    response = client.post("/keys/rotate", {"key": name, "grace_s": grace_s})
    row = read_row(NewKey, response)
    file = _replace_own(client, row)
    if as_json:
        console.print_json(response)
        return
    put(row.key)
    old = f"still works for {wording.span(grace_s)}" if grace_s else "has ended"
    where = f" The file {file} has it already." if file else ""
    console.err().print(
        f"This is the new secret of the key {row.name}, shown this once; keep it safe. The old "
        f"one ({row.old_prefix}…) {old}.{where}",
        soft_wrap=True,
    )


def _replace_own(client: AdminClient, row: NewKey) -> str:
    """Writes the new secret to the key file of this machine that has the old one; returns its
    name, empty if none has it."""
    access = client.access
    if not access.is_local or row.old_prefix is None:
        return ""
    for file in (access.admin_key_file, access.first_key_file):
        if file.exists() and file.read_text().startswith(row.old_prefix):
            with written_whole(file, replace=True) as new:
                new.write_text(f"{row.key}\n")
            return str(file)
    return ""


def summary(row: KeyRow) -> str:
    """A key's grants and limits on one line."""
    parts = [", ".join(row.scopes), row.priority + (", isolated" if row.isolated else "")]
    if row.team:
        parts.append(f"team {row.team}")
    if row.models is not None:
        parts.append(f"models {', '.join(row.models)}")
    if row.limits != LimitsRow():
        parts.append(limits_text(row.limits))
    return "; ".join(parts)


def limits_text(limits: LimitsRow) -> str:
    """The limits on one line."""
    shown = [
        f"{wording.number(most)} {words}"
        for most, words in (
            (limits.requests_per_minute, "requests/min"),
            (limits.tokens_per_minute, "tokens/min"),
            (limits.tokens_per_day, "tokens/day"),
            (limits.concurrent_requests, "at once"),
        )
        if most is not None
    ]
    return ", ".join(shown) or "no limits"
