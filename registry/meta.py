"""The registry's own values: its router's id and the secret of the router's usage records."""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert

from registry.db import Registry, WriteSession
from registry.tables import meta


async def router_id(registry: Registry) -> str:
    """The id of this registry's router: 16 random hex characters, made once and kept."""
    return await _read_or_create(registry, "router_id", secrets.token_hex(8))


async def usage_secret(registry: Registry) -> bytes:
    """32 random bytes, made once and kept, by which the router knows its own usage records."""
    return bytes.fromhex(await _read_or_create(registry, "accounts_secret", secrets.token_hex(32)))


async def _read_or_create(registry: Registry, key: str, value: str) -> str:
    """The value under the key; `value` is stored and returned if there is none yet."""

    async def make(session: WriteSession) -> str:
        made = insert(meta).values(key=key, value=value)
        await session.execute(made.on_conflict_do_nothing())
        row = await session.fetch_one(select(meta.c.value).where(meta.c.key == key))
        assert row is not None
        return str(row["value"])

    return await registry.write(make)
