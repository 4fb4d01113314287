"""Periodic jobs, run by APScheduler: usage and residency are written to the registry in batches."""

import asyncio
import logging
import time
from typing import NamedTuple

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from node.protocol.messages import ModelState, ModelStatus
from registry import audit, models, nodes, residency, usage
from registry.db import Registry, WriteSession
from registry.errors import NotFound, RefusedRow, RegistryError, RegistryUnwritable
from registry.records import ResidencyRecord, UsageRecord
from router.fleet.fleet import Fleet
from router.records.ledger import Ledger
from router.settings import USAGE_FLUSH_S, Settings
from router.types import NodeView

log = logging.getLogger("mlx_fleet.jobs")

RESIDENCY_S = 2.0
AUDIT_TRIM_S = 600.0
BATCH_ROWS = 5_000
"""Rows per transaction; if one fails, at most this many have been prepared for nothing."""


class _NodeRows(NamedTuple):
    """All that the registry keeps of a node's status."""

    residency: tuple[ResidencyRecord, ...]
    macs: tuple[str, ...]


class Jobs:
    """Runs the router's timers, and runs the jobs a last time at shutdown."""

    def __init__(
        self, registry: Registry, fleet: Fleet, ledger: Ledger, audit_entries: int
    ) -> None:
        self._registry = registry
        self._fleet = fleet
        self._ledger = ledger
        self.audit_entries = audit_entries
        """Most entries that the audit log keeps."""
        self._written: dict[str, _NodeRows] = {}
        self._usage_lock = asyncio.Lock()
        self._residency_lock = asyncio.Lock()
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        # A run that is still busy when the next one is due is skipped; under load that is normal.
        logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)

    def follow(self, settings: Settings) -> None:
        """Adopts what a reload has changed."""
        self.audit_entries = settings.audit_entries

    def start(self) -> None:
        every = {"trigger": "interval", "coalesce": True, "max_instances": 1}
        self._scheduler.add_job(self.write_usage, seconds=USAGE_FLUSH_S, **every)
        self._scheduler.add_job(self.write_residency, seconds=RESIDENCY_S, **every)
        self._scheduler.add_job(self.trim_audit, seconds=AUDIT_TRIM_S, **every)
        self._scheduler.start()

    async def close(self) -> None:
        """Stops the timers, lets running jobs end, and writes what is left."""
        self._scheduler.remove_all_jobs()
        async with self._usage_lock, self._residency_lock:
            self._scheduler.shutdown(wait=False)
        self._ledger.close_all()
        await self.write_usage()
        await asyncio.to_thread(self._ledger.request_log.close_spans)
        if left := self._ledger.waiting_rows:
            log.error("%d usage rows could not be written; agents send theirs again", left)

    async def write_usage(self) -> None:
        """Writes the ledger's rows, `BATCH_ROWS` in one transaction; rows that fail are kept for
        the next run."""
        async with self._usage_lock:
            self._ledger.expire(time.monotonic())
            while rows := self._ledger.pop_rows(BATCH_ROWS):
                if not await self._insert(rows):
                    break

    async def _insert(self, rows: list[UsageRecord]) -> bool:
        """Writes the rows; returns True if none of them has to be tried again."""

        async def insert(session: WriteSession) -> list[UsageRecord]:
            try:
                await usage.add_many(session, rows)
            except RefusedRow:
                return await usage.add_each(session, rows)
            return []

        written = False
        try:
            refused = await self._registry.write(insert)
            written = True
            for row in refused:
                log.error(
                    "the usage record of %.80r on %s cannot be stored", row.request_id, row.node_id
                )
        except RegistryUnwritable:
            pass  # the registry has logged it
        except RegistryError:
            log.exception("%d usage rows could not be written; they are kept", len(rows))
        finally:
            if not written:
                self._ledger.push_back_rows(rows)
        return written

    async def trim_audit(self) -> None:
        """Deletes the oldest entries of the audit log beyond their number."""
        try:
            await self._registry.write(lambda session: audit.trim(session, self.audit_entries))
        except RegistryUnwritable:
            pass  # the registry has logged it
        except RegistryError:
            log.exception("old audit entries could not be deleted")

    async def write_residency(self) -> None:
        """Writes the residency of each node where it has changed."""
        async with self._residency_lock:
            await self._write_changed()

    async def _write_changed(self) -> None:
        views = self._fleet.snapshot
        for gone in self._written.keys() - {view.node_id for view in views}:
            del self._written[gone]
        for view in views:
            written = self._written.get(view.node_id)
            rows = _rows_of(view, written)
            if rows is not None and rows != written:
                try:
                    await self._write_node(view, rows)
                except NotFound:
                    continue  # removed meanwhile
                except RegistryUnwritable:
                    return  # the registry has logged it
                except RegistryError:
                    log.exception("the residency of node %s could not be written", view.name)
                    continue
                self._written[view.node_id] = rows

    async def _write_node(self, view: NodeView, rows: _NodeRows) -> None:
        now_s = time.time()
        statuses = _whole(view)

        async def replace(session: WriteSession) -> None:
            await residency.replace_node(session, view.node_id, list(rows.residency))
            if rows.macs:
                await nodes.set_macs(session, view.node_id, rows.macs)
            for model in statuses:
                await models.seen(
                    session, model.name, model.context_tokens, model.weight_bytes, now_s
                )

        await self._registry.write(replace)


def _rows_of(view: NodeView, written: _NodeRows | None) -> _NodeRows | None:
    """The rows to write; None before the node's first status. An agent that reports no addresses
    leaves those that were written."""
    rows = residency_rows(view)
    if rows is None or view.status is None:
        return None
    return _NodeRows(rows, view.status.macs or (written.macs if written else ()))


def residency_rows(view: NodeView) -> tuple[ResidencyRecord, ...] | None:
    """Returns a node's models as registry rows; None before its first status."""
    if view.status is None:
        return None
    return tuple(
        ResidencyRecord(
            node_id=view.node_id,
            model=model.name,
            state=model.state.value,
            weight_bytes=model.weight_bytes,
            since_s=model.since_unix_s,
        )
        for model in _whole(view)
    )


def _whole(view: NodeView) -> tuple[ModelStatus, ...]:
    """Lists the node's models, except those that are being pulled, which may never be complete."""
    models = view.status.models if view.status else ()
    return tuple(model for model in models if model.state is not ModelState.PULLING)
