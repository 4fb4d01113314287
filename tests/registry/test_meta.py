from __future__ import annotations

import asyncio
from pathlib import Path

from registry.meta import router_id, usage_secret
from registry.migrate import open_migrated


async def test_the_router_id_is_made_once_and_survives_a_restart(tmp_path: Path) -> None:
    opened = await open_migrated(tmp_path / "registry.db")
    ids = set(await asyncio.gather(*(router_id(opened) for _ in range(5))))
    await opened.close()
    again = await open_migrated(tmp_path / "registry.db")
    assert ids == {await router_id(again)}
    assert len(bytes.fromhex(ids.pop())) == 8
    await again.close()


async def test_the_secret_of_usage_records_is_each_registry_s_own_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    secrets = []
    for name in ("registry.db", "registry.db", "other.db"):
        opened = await open_migrated(tmp_path / name)
        secrets.append(await usage_secret(opened))
        await opened.close()
    first, again, other = secrets
    assert first == again != other
    assert len(first) == 32
