"""A migrated registry in the test's own folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from registry.db import Registry
from registry.migrate import open_migrated


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    opened = await open_migrated(tmp_path / "registry.db")
    yield opened
    await opened.close()
