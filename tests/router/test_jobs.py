"""The periodic work against a real registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from node.protocol.messages import ModelState
from registry import audit, db, nodes, residency, usage
from registry.db import Registry, WriteSession
from registry.errors import RegistryFailed
from registry.migrate import open_migrated
from registry.records import AuditRecord, NodeRecord, ResidencyRecord, UsageRecord
from registry.trouble import SETTLED_S, Trouble
from router import jobs as jobs_module
from router.fleet.fleet import Fleet
from router.jobs import Jobs, residency_rows
from router.records.ledger import Ledger
from router.settings import Settings
from tests.fakes import FakeClock
from tests.registry.rows import model_names, usage_rows
from tests.router.conftest import (
    ORIGINS,
    WAIT_S,
    lease,
    model_status,
    node_record,
    node_status,
    node_view,
    ticket,
)

NODE = node_record("http://a")


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    opened = await open_migrated(tmp_path / "registry.db")
    yield opened
    await opened.close()


def served(ledger: Ledger, name: str) -> None:
    ledger.opened(ticket(name), lease(name), "a", "i1", reported=False)
    ledger.ended(lease(name), 1.0, "served")


async def register(registry: Registry, record: NodeRecord) -> None:
    async def add(session: WriteSession) -> None:
        await nodes.add(session, record)

    await registry.write(add)


async def unregister(registry: Registry, name: str) -> None:
    async def remove(session: WriteSession) -> None:
        await nodes.remove(session, name)

    await registry.write(remove)


async def usage_of(registry: Registry) -> list[str]:
    async with registry.read() as session:
        return sorted(row.request_id for row in await usage_rows(session))


async def residency_of(registry: Registry) -> list[ResidencyRecord]:
    async with registry.read() as session:
        return await residency.list_all(session)


async def fill_disk(registry: Registry, pages: int = 1) -> None:
    """Lets the database grow to so many pages only: beyond, its disk is as good as full."""
    async with registry._writer_engine.connect() as connection:
        await db._pragma(connection, f"max_page_count={pages}")


def report_models(fleet: Fleet, *names: str) -> None:
    fleet.on_status(NODE.id, node_status(*(model_status(name, weight_bytes=5) for name in names)))


async def test_usage_is_written_in_one_batch(registry: Registry) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    await jobs.write_usage()
    served(ledger, "one")
    served(ledger, "two")
    await jobs.write_usage()
    assert await usage_of(registry) == ["one", "two"]
    assert ledger.pop_rows() == []


async def test_a_write_that_fails_keeps_the_rows_for_the_next_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    served(ledger, "one")

    async def fail(_session: WriteSession, _rows: list[UsageRecord]) -> int:
        raise RegistryFailed(registry.path, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(usage, "add_many", fail)
        await jobs.write_usage()
        await jobs.write_usage()
    (line,) = caplog.messages
    assert line.startswith("Writes fail, and are tried again:") and "the disk is full" in line
    served(ledger, "two")
    await jobs.write_usage()
    assert await usage_of(registry) == ["one", "two"]


async def test_a_disk_that_stays_full_is_one_line_and_loses_nothing(
    registry: Registry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "BATCH_ROWS", 100)
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    registry.trouble = Trouble(clock)
    ledger, fleet = Ledger(ORIGINS), Fleet()
    jobs = Jobs(registry, fleet, ledger, 100)
    fleet.add(NODE)
    await register(registry, NODE)
    await fill_disk(registry)
    for run in range(20):
        clock.advance(1.0)
        for number in range(50):
            served(ledger, f"r{run}-{number}")
        report_models(fleet, f"m{run}")
        await jobs.write_usage()
        await jobs.write_residency()
    assert ledger.waiting_rows >= 900, "the last pages have room for some"
    (line,) = caplog.messages
    assert line.startswith("Writes fail") and line.endswith("is full; make room on it.")
    assert not any(record.exc_info for record in caplog.records)
    assert registry.trouble.sentence.endswith("make room on it.")
    await fill_disk(registry, pages=1 << 30)
    clock.advance(SETTLED_S)
    await jobs.write_usage()
    await jobs.write_residency()
    async with registry.read() as session:
        assert len(await usage_rows(session)) == 1000
    assert [row.model for row in await residency_of(registry)] == ["m19"]
    assert [line.split(",")[0] for line in caplog.messages[1:]] == ["Writes succeed again"]
    assert registry.trouble.sentence == ""


async def test_usage_records_that_the_end_leaves_unwritten_are_logged(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    jobs.start()
    await fill_disk(registry)
    for number in range(2000):
        served(ledger, f"r{number}")
    await jobs.close()
    assert caplog.messages[-1].startswith("2000 usage rows could not be written; agents send")


async def test_a_row_that_cannot_be_stored_does_not_prevent_others(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    for name in ("one", "bad", "two"):
        served(ledger, name)
    rows = ledger.pop_rows()
    ledger.push_back_rows(
        [replace(row, seq=10**30) if row.request_id == "bad" else row for row in rows]
    )
    await jobs.write_usage()
    await jobs.write_usage()
    assert await usage_of(registry) == ["one", "two"]
    assert len(caplog.messages) == 1 and "bad" in caplog.messages[0]
    assert ledger.pop_rows() == []


async def test_a_run_cut_off_by_the_shutdown_loses_no_rows(registry: Registry) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    jobs.start()
    turn = asyncio.Event()

    async def hold(_session: WriteSession) -> None:
        await asyncio.wait_for(turn.wait(), WAIT_S)

    blocker = asyncio.create_task(registry.write(hold))
    served(ledger, "early")
    run = asyncio.create_task(jobs.write_usage())
    await asyncio.sleep(0)  # both are in the registry's queue now
    run.cancel()
    served(ledger, "late")
    closing = asyncio.create_task(jobs.close())
    turn.set()
    await asyncio.wait_for(asyncio.gather(closing, blocker), WAIT_S)
    await asyncio.gather(run, return_exceptions=True)
    assert await usage_of(registry) == ["early", "late"]


async def test_the_last_run_writes_requests_that_are_still_open(registry: Registry) -> None:
    ledger = Ledger(ORIGINS)
    jobs = Jobs(registry, Fleet(), ledger, 100)
    jobs.start()
    ledger.opened(ticket("open"), lease("open"), "a", "i1", reported=True)
    await jobs.close()
    assert await usage_of(registry) == ["open"]


async def test_residency_and_models_are_written_where_they_changed(registry: Registry) -> None:
    await register(registry, NODE)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    await jobs.write_residency()
    assert await residency_of(registry) == []
    report_models(fleet, "m")
    await jobs.write_residency()
    assert await residency_of(registry) == [ResidencyRecord(NODE.id, "m", "ready", 5, 0.0)]
    report_models(fleet, "x")
    await jobs.write_residency()
    assert [row.model for row in await residency_of(registry)] == ["x"]
    async with registry.read() as session:
        assert await model_names(session) == ["m", "x"]


async def test_unchanged_residency_is_not_written_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(registry, NODE)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    report_models(fleet, "m")
    await jobs.write_residency()
    monkeypatch.setattr(Registry, "write", None)
    report_models(fleet, "m")
    await jobs.write_residency()


async def test_a_node_removed_meanwhile_does_not_stop_the_others(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    other = node_record("http://b", "b")
    await register(registry, other)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    fleet.add(other)
    report_models(fleet, "m")
    fleet.on_status(other.id, node_status(model_status("y")))
    await jobs.write_residency()
    assert [row.node_id for row in await residency_of(registry)] == [other.id]
    assert caplog.messages == []


async def test_a_node_that_was_removed_and_added_again_is_written_again(
    registry: Registry,
) -> None:
    await register(registry, NODE)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    report_models(fleet, "m")
    await jobs.write_residency()
    await unregister(registry, NODE.name)
    fleet.remove(NODE.id)
    await jobs.write_residency()
    await register(registry, NODE)
    fleet.add(NODE)
    report_models(fleet, "m")
    await jobs.write_residency()
    assert [row.model for row in await residency_of(registry)] == ["m"]


async def test_a_failing_registry_is_logged_and_tried_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await register(registry, NODE)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    report_models(fleet, "m")

    async def fail(*_given: object) -> None:
        raise RegistryFailed(registry.path, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(residency, "replace_node", fail)
        await jobs.write_residency()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    await jobs.write_residency()
    assert [row.model for row in await residency_of(registry)] == ["m"]


def test_a_node_without_a_status_has_no_rows() -> None:
    view = Fleet()
    view.add(NODE)
    assert residency_rows(view.snapshot[0]) is None
    rows = residency_rows(node_view("a", model_status("m", since_unix_s=3.0)))
    assert rows == (ResidencyRecord("a", "m", "ready", 0, 3.0),)


def test_a_model_that_is_being_pulled_is_not_remembered() -> None:
    view = node_view("a", model_status("m", state=ModelState.PULLING, progress=0.5))
    assert residency_rows(view) == ()


async def test_old_audit_entries_are_deleted(registry: Registry) -> None:
    for number in range(4):
        entry = AuditRecord(float(number), "admin", "key.create", f"k{number}", "")
        await registry.write(lambda s, entry=entry: audit.add(s, entry))  # type: ignore[misc]
    jobs = Jobs(registry, Fleet(), Ledger(ORIGINS), 2)
    await jobs.trim_audit()
    async with registry.read() as session:
        assert [entry.subject for entry in await audit.recent(session, 9)] == ["k3", "k2"]
    jobs.follow(Settings(Path(), audit_entries=1))
    await jobs.trim_audit()
    async with registry.read() as session:
        assert [entry.subject for entry in await audit.recent(session, 9)] == ["k3"]


async def test_the_addresses_that_a_node_reports_are_written_where_they_changed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(registry, NODE)
    fleet = Fleet()
    jobs = Jobs(registry, fleet, Ledger(ORIGINS), 100)
    fleet.add(NODE)
    status = replace(node_status(model_status("m")), macs=("a0:00:00:00:00:01",))
    fleet.on_status(NODE.id, status)
    await jobs.write_residency()
    async with registry.read() as session:
        assert (await nodes.get(session, NODE.name)).macs == ("a0:00:00:00:00:01",)
    fleet.on_status(NODE.id, replace(status, macs=("a0:00:00:00:00:02",)))
    await jobs.write_residency()
    async with registry.read() as session:
        assert (await nodes.get(session, NODE.name)).macs == ("a0:00:00:00:00:02",)
    # An older agent that takes its place reports none.
    fleet.on_status(NODE.id, replace(status, macs=()))
    monkeypatch.setattr(Registry, "write", None)
    await jobs.write_residency()
