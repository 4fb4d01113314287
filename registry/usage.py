"""Usage: one row for each finished request, however often its node reports it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from sqlalchemy import and_, func, literal_column, or_, select
from sqlalchemy.dialects.sqlite import dialect, insert

from registry.db import ReadSession, WriteSession
from registry.errors import RefusedRow
from registry.records import UsageRecord, UsageTotal
from registry.tables import usage

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


async def totals(session: ReadSession, since_s: float | None) -> list[UsageTotal]:
    """Sums by key and model over requests finished at `since_s` or later, or over all.

    A request is one however often it was sent to a node (its later attempts are `ID.2`), its
    tokens those of all attempts.
    """
    sums = [
        func.coalesce(func.sum(column), 0).label(column.name)
        for column in (usage.c.prompt_tokens, usage.c.cached_tokens, usage.c.completion_tokens)
    ]
    first_dot = func.instr(usage.c.request_id + ".", ".")
    tickets = func.substr(usage.c.request_id, 1, first_dot - 1)
    requests = func.count(tickets.distinct()).label("requests")
    cost = func.sum(usage.c.cost).label("cost")
    query = select(usage.c.key_id, usage.c.model, requests, *sums, cost)
    if since_s is not None:
        query = query.where(usage.c.finished_at_s >= since_s)
    grouped = query.group_by(usage.c.key_id, usage.c.model).order_by(usage.c.key_id, usage.c.model)
    return [UsageTotal(**row) for row in await session.fetch_all(grouped)]


async def costs(session: ReadSession, since_s: float) -> dict[str, float]:
    """The cost of each key's requests to paid servers since then, by the key's id."""
    spent = func.sum(usage.c.cost).label("spent")
    paid = select(usage.c.key_id, spent).where(
        usage.c.finished_at_s >= since_s, usage.c.cost.is_not(None)
    )
    rows = await session.fetch_all(paid.group_by(usage.c.key_id))
    return {row["key_id"]: row["spent"] for row in rows}
