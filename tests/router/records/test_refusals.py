from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from registry import audit
from registry.db import Registry
from registry.migrate import open_migrated
from registry.records import AuditRecord
from router.records.refusals import ENTRIES_A_MINUTE, Refusals
from tests.fakes import FakeClock

ENTRY = AuditRecord(1.0, "", "GET", "/admin/keys", "No.", "10.0.0.9", "invalid_api_key")


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    opened = await open_migrated(tmp_path / "registry.db")
    yield opened
    await opened.close()


async def details(registry: Registry) -> list[str]:
    async with registry.read() as session:
        return [entry.detail for entry in await audit.recent(session, 1000)]


def test_wrong_keys_of_all_addresses_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    refusals = Refusals(None, clock)  # type: ignore[arg-type]
    for number in range(1000):
        refusals.wrong_key(f"10.0.{number // 250}.{number % 250}", "/v1/models")
    clock.advance(60.0)
    refusals.wrong_key("10.0.0.1", "/" + "x" * 1000)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "refused a request without a valid key from 10.0.0.0 at '/v1/models'"
    assert second.endswith("(999 more of the kind since the last line)") and len(second) < 250
    assert caplog.records[0].levelno == logging.WARNING


async def test_the_next_entry_counts_those_that_were_left_out(registry: Registry) -> None:
    clock = FakeClock()
    refusals = Refusals(registry, clock)
    for _ in range(ENTRIES_A_MINUTE + 5):
        await refusals.admin_failed(ENTRY)
    assert await details(registry) == ["No."] * ENTRIES_A_MINUTE
    clock.advance(60.0 / ENTRIES_A_MINUTE)
    await refusals.admin_failed(ENTRY)
    assert (await details(registry))[0] == "No. (5 more were not noted)"
    clock.advance(60.0)
    await refusals.admin_failed(ENTRY)
    assert (await details(registry))[0] == "No."


async def test_a_registry_that_is_closed_costs_a_line_in_the_log(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals(registry, FakeClock())
    await registry.close()
    await refusals.admin_failed(ENTRY)
    assert "an audit entry cannot be written" in caplog.text
