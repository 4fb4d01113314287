"""Usage: one row for each finished request, however often its node reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Integer, and_, cast, func, literal_column, or_, select
from sqlalchemy.dialects.sqlite import dialect, insert

from registry.db import ReadSession, WriteSession
from registry.errors import RefusedRow
from registry.records import UsageRecord, UsageTotal
from registry.tables import keys, usage

_NAMES = [column.name for column in usage.c]
_values = attrgetter(*_NAMES)
"""All values of a record; `dataclasses.asdict` copies deeply, a tenth of a busy router's time."""


def _insert_sql() -> str:
    """SQLAlchemy's own text of the insert, its parameters in the order of `_NAMES`.

    It is made once: to bind each row by name took a twentieth of a busy router's time.
    """
    new = insert(usage)
    new = new.on_conflict_do_update(
        index_elements=[usage.c.node_id, usage.c.request_id],
        set_={name: new.excluded[name] for name in _NAMES},
        where=or_(
            usage.c.seq == literal_column("0"),
            and_(usage.c.instance_id == new.excluded.instance_id, usage.c.seq < new.excluded.seq),
        ),
    )
    compiled = new.compile(dialect=dialect(), column_keys=_NAMES)
    assert compiled.positiontup == _NAMES
    return str(compiled)


_INSERT_SQL = _insert_sql()


async def add_many(session: WriteSession, records: Sequence[UsageRecord]) -> int:
    """Store the rows that are new and return how many were.

    A (node_id, request_id) that is stored already is left as it is, since nodes replay events. It
    gives way where it has no usage of a node (seq 0), or to a later event of the same instance: the
    request was sent to that node again. Raises RefusedRow where one cannot be stored: then the
    rows before it may be, and `add_each` stores all that can be.
    """
    if not records:
        return 0
    return await session.execute_text(_INSERT_SQL, [_values(record) for record in records])


async def add_each(session: WriteSession, records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """The same as `add_many`, one row at a time; returns the rows that cannot be stored."""
    refused = []
    for record in records:
        try:
            await session.execute_text(_INSERT_SQL, [_values(record)])
        except RefusedRow:
            refused.append(record)
    return refused


_GROUPS: Mapping[str, tuple[str, ColumnElement[Any]]] = {
    "key": ("key_id", usage.c.key_id),
    "team": ("team_id", func.coalesce(keys.c.team_id, "")),
    "model": ("model", usage.c.model),
    "node": ("node_id", usage.c.node_id),
    "day": ("day", cast(usage.c.finished_at_s / literal_column("86400"), Integer)),
}
GROUPS = tuple(_GROUPS)


async def totals(
    session: ReadSession,
    by: Sequence[str] = ("key", "model"),
    since_s: float | None = None,
    until_s: float | None = None,
) -> list[UsageTotal]:
    """Sums by these of `GROUPS` over requests finished at `since_s` or later and before `until_s`.

    A request is one however often it was sent to a node (its later attempts are `ID.2`), its
    tokens those of all attempts.
    """
    counted = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    sums = [func.coalesce(func.sum(usage.c[name]), 0).label(name) for name in counted]
    first_dot = func.instr(usage.c.request_id + ".", ".")
    tickets = func.substr(usage.c.request_id, 1, first_dot - 1)
    requests = func.count(tickets.distinct()).label("requests")
    cost = func.sum(usage.c.cost).label("cost")
    groups = [_GROUPS[name][1].label(_GROUPS[name][0]) for name in by]
    query = select(requests, *sums, cost, *groups)
    if "team" in by:
        query = query.select_from(usage.outerjoin(keys, usage.c.key_id == keys.c.id))
    if since_s is not None:
        query = query.where(usage.c.finished_at_s >= since_s)
    if until_s is not None:
        query = query.where(usage.c.finished_at_s < until_s)
    query = query.group_by(*groups).order_by(*groups)
    return [UsageTotal(**row) for row in await session.fetch_all(query)]


async def tokens(session: ReadSession, since_s: float) -> dict[str, int]:
    """The tokens of each key's requests that finished since then, by the key's id."""
    both = func.coalesce(usage.c.prompt_tokens, 0) + func.coalesce(usage.c.completion_tokens, 0)
    used = func.sum(both).label("used")
    since = select(usage.c.key_id, used).where(usage.c.finished_at_s >= since_s)
    rows = await session.fetch_all(since.group_by(usage.c.key_id))
    return {row["key_id"]: row["used"] for row in rows}


async def costs(session: ReadSession, since_s: float) -> dict[str, float]:
    """The cost of each key's requests to paid servers since then, by the key's id."""
    spent = func.sum(usage.c.cost).label("spent")
    paid = select(usage.c.key_id, spent).where(
        usage.c.finished_at_s >= since_s, usage.c.cost.is_not(None)
    )
    rows = await session.fetch_all(paid.group_by(usage.c.key_id))
    return {row["key_id"]: row["spent"] for row in rows}
