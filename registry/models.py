"""Models that nodes have reported, and their last known sizes."""

from __future__ import annotations

from sqlalchemy import func
from sqlalchemy.dialects.sqlite import insert

from registry.db import WriteSession
from registry.records import ModelRecord
from registry.tables import models


async def seen(
    session: WriteSession,
    name: str,
    context_tokens: int | None,
    weight_bytes: int | None,
    now_s: float,
) -> ModelRecord:
    """Note that a node reported the model; a None keeps what was known before."""
    new = insert(models).values(
        name=name,
        context_tokens=context_tokens,
        weight_bytes=weight_bytes,
        first_seen_at_s=now_s,
        last_seen_at_s=now_s,
    )
    upsert = new.on_conflict_do_update(
        index_elements=[models.c.name],
        set_={
            "context_tokens": func.coalesce(new.excluded.context_tokens, models.c.context_tokens),
            "weight_bytes": func.coalesce(new.excluded.weight_bytes, models.c.weight_bytes),
            "last_seen_at_s": new.excluded.last_seen_at_s,
        },
    )
    row = await session.fetch_one(upsert.returning(models))
    assert row is not None
    return ModelRecord(**row)
