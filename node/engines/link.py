"""The agent's end of the socketpair to one engine process.

The link starts the process, sends it commands, and passes each row's deltas to that row's stream.
It never stops reading: a client that does not read costs no more memory than its own response,
which `max_tokens` bounds. An engine process exits when its end of the pair closes, so it never
outlives the agent.
"""

import asyncio
import itertools
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from signal import SIGKILL

from node.engines.row_stream import RowEnd, RowStream
from node.errors import (
    EngineDied,
    EngineFault,
    EngineUnresponsive,
    LoadFailure,
    MemoryShort,
    NodeError,
    RowRefused,
)
from node.ipc.child_process import ChildProcess, spawn
from node.ipc.framing import FrameSplitter, decode_report, encode_frame
from node.ipc.generate import GenerateRequest
from node.ipc.long_step import LongStep, LongStepWatch
from node.ipc.messages import (
    Accepted,
    Broken,
    CacheEvent,
    Cancel,
    ClearCache,
    Command,
    EngineSpec,
    EngineStats,
    Frame,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Marked,
    MemoryLease,
    Pressure,
    Refused,
    Report,
    SetLease,
    SetPressure,
    Shutdown,
    Submit,
)
from serving.processes.process_signal import send_signal

ENGINE_MODULE = "node.engine.worker"
"""Module that an engine process runs."""
CLEAR_S = 30.0
"""Seconds that an engine may take to drop its stored KV."""


class EngineLink:
    """One engine process. All methods run on the event loop that created it."""

    def __init__(
        self,
        *,
        on_progress: Callable[[float], None] = lambda fraction: None,
        on_loaded: Callable[[Loaded], None] = lambda info: None,
        on_marked: Callable[[Marked], None] = lambda marked: None,
        on_cache_events: Callable[[tuple[CacheEvent, ...]], None] = lambda events: None,
        on_stats: Callable[[EngineStats], None] = lambda stats: None,
        on_died: Callable[[], None] = lambda: None,
    ) -> None:
        self.info: Loaded | None = None
        self.stats: EngineStats | None = None
        """The engine's last report."""
        self.alive = False
        self.broken: Broken | None = None
        """The engine's reason for its end, if it sent one."""
        self.decoded_tokens = 0
        """Tokens of responses since the load."""
        self._long_step = LongStepWatch(time.monotonic)
        self._on_progress = on_progress
        self._on_loaded = on_loaded
        self._on_marked = on_marked
        self._on_cache_events = on_cache_events
        self._on_stats = on_stats
        self._on_died = on_died
        self._pending: dict[int, asyncio.Future[EngineStats]] = {}
        """Pending `SetLease` and `ClearCache` commands by number."""
        self._numbers = itertools.count(1)
        self._rows: dict[str, RowStream] = {}
        self._loaded: asyncio.Future[Loaded] | None = None
        self._process: Process | None = None
        self._transport: asyncio.Transport | None = None
        self._reaper: asyncio.Task[int] | None = None
        self._stopping = False

    @property
    def open_rows(self) -> int:
        """Number of requests that the engine has accepted and not finished."""
        return len(self._rows)

    @property
    def work_tokens(self) -> int:
        """Tokens prefilled and decoded since the load, plus marks of long steps: grows while the
        engine makes progress."""
        return self.prefilled_tokens + self.decoded_tokens + self._long_step.marks

    @property
    def prefilled_tokens(self) -> int:
        """Tokens prefilled since the load, as the engine's last report says."""
        return 0 if self.stats is None else self.stats.prefill_tokens

    def kill(self) -> None:
        """Kills the process, as if it had died by itself."""
        if self._process is not None and self.alive:
            send_signal(self._process, SIGKILL)

    async def start(self, spec: EngineSpec, waiting: ChildProcess | None = None) -> Loaded:
        """Loads the model in the `waiting` process, or in a new one; returns when it serves. Raises
        `LoadFailure` with the reason, or `OSError`."""
        loop = asyncio.get_running_loop()
        self._loaded = loop.create_future()
        started = waiting or await spawn(ENGINE_MODULE, spec.engine)
        self._process = started.process
        self._reaper = asyncio.create_task(self._process.wait())
        self.alive = True
        try:
            self._transport, _ = await loop.create_connection(
                lambda: _Receiver(self), sock=started.link
            )
            self._send(Load(spec))
            self.info = await self._loaded
        except BaseException:
            self._loaded.cancel()
            await self.stop(0.0)
            raise
        return self.info

    def submit(self, request: GenerateRequest, on_end: RowEnd) -> RowStream:
        """Sends a row to the engine. Raises `EngineDied` if the engine has ended, and encoding
        errors of the request; then there is no row."""
        if not self.alive:
            raise EngineDied
        frame = encode_frame(Submit(request))
        row = RowStream(request.uid, on_end)
        self._rows[request.uid] = row
        self._write(frame)
        return row

    def cancel(self, uid: str) -> None:
        """Has the engine drop a row; its last delta still arrives. Does nothing for an ended
        row."""
        if uid in self._rows:
            self._send(Cancel(uid))

    def abandon(self, uid: str, failure: NodeError) -> None:
        """Ends a row with `failure` at once, and has the engine drop it. Does nothing for an ended
        row."""
        self.cancel(uid)
        if row := self._rows.pop(uid, None):
            row.on_failure(failure)

    async def set_lease(self, lease: MemoryLease) -> EngineStats:
        """Returns the engine's state once it keeps within the lease. Raises `EngineDied`."""
        number = next(self._numbers)
        return await self._request(number, SetLease(lease, number))

    async def clear_cache(self) -> EngineStats:
        """Returns the engine's state once it has dropped all stored KV. Raises `EngineDied` or
        `EngineUnresponsive`."""
        number = next(self._numbers)
        try:
            async with asyncio.timeout(CLEAR_S):
                return await self._request(number, ClearCache(number))
        except TimeoutError:
            raise EngineUnresponsive(
                f"The engine did not clear its prefix cache within {CLEAR_S:.0f} s."
            ) from None

    def set_pressure(self, level: Pressure) -> None:
        """Sends the level of memory pressure to the engine."""
        self._send(SetPressure(level))

    async def stop(self, grace_s: float) -> int | None:
        """Ends the process: sends a shutdown, and kills it after `grace_s` seconds. Open rows fail.
        Returns the exit code, or None if there was no process. Also needed after a death, to clean
        up."""
        self._stopping = True
        if self._process is None or self._reaper is None:
            return None
        if grace_s > 0:
            self._send(Shutdown())
            await asyncio.wait({self._reaper}, timeout=grace_s)
        if not self._reaper.done():
            send_signal(self._process, SIGKILL)
        # A cancelled waiter does not cancel the reaper.
        code = await asyncio.shield(self._reaper)
        if self._transport is not None:
            self._transport.close()
        self.on_lost()
        return code

    def on_report(self, report: Report) -> None:
        match report:
            case Accepted():
                if row := self._rows.get(report.uid):
                    row.on_accepted(report)
            case Refused():
                if row := self._rows.pop(report.uid, None):
                    row.on_failure(_refusal(report))
            case Broken():
                self.broken = report
                self.on_lost()
            case Marked():
                self._on_marked(report)
            case LongStep() | EngineStats():
                self._on_state(report)
            case _:
                self._on_load_report(report)

    def _on_state(self, report: LongStep | EngineStats) -> None:
        if isinstance(report, LongStep):
            self._long_step.begin(report.expected_s)
        else:
            self._long_step.end()
            self._on_stats_report(report)

    def on_frame(self, frame: Frame) -> None:
        self._long_step.end()
        if frame.cache_events:
            # First: the cache events of a row are known before its end is.
            self._on_cache_events(frame.cache_events)
        rows = self._rows
        for delta in frame.deltas:
            if (row := rows.get(delta.uid)) is None:
                continue
            if delta.is_last:
                del rows[delta.uid]
            before = row.token_count
            row.on_delta(delta)
            self.decoded_tokens += row.token_count - before
        for progress in frame.progress:
            if row := rows.get(progress.uid):
                row.on_progress(progress)

    def on_lost(self) -> None:
        """Called when the engine's end of the pair is closed, or the engine is broken: every open
        row fails."""
        if not self.alive:
            return
        self.alive = False
        self._fail_load("The engine process ended while it loaded the model.")
        for confirmation in self._pending.values():
            if not confirmation.done():
                confirmation.set_exception(self._death())
        rows, self._rows = self._rows, {}
        for row in rows.values():
            row.on_failure(self._death())
        if not self._stopping and self.info is not None:
            self._on_died()

    def _death(self) -> EngineDied:
        return EngineDied(None if self.broken is None else self.broken.reason)

    async def _request(self, number: int, command: SetLease | ClearCache) -> EngineStats:
        if not self.alive:
            raise EngineDied
        confirmation: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._pending[number] = confirmation
        self._send(command)
        try:
            return await confirmation
        finally:
            del self._pending[number]

    def _on_stats_report(self, stats: EngineStats) -> None:
        self.stats = stats
        # Before the results: a waiter may rely on the new stats.
        self._on_stats(stats)
        for number in stats.confirmed:
            if (confirmation := self._pending.get(number)) is not None and not confirmation.done():
                confirmation.set_result(stats)

    def _on_load_report(self, report: Report) -> None:
        match report:
            case Loading():
                self._on_progress(report.fraction)
            case LoadFailed():
                self._fail_load(report.reason)
            case Loaded():
                if self._loaded is not None and not self._loaded.done():
                    # Before the first frame, which may arrive in the same iteration of the loop.
                    self._on_loaded(report)
                    self._loaded.set_result(report)

    def _fail_load(self, reason: str) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(LoadFailure(reason))

    def _send(self, command: Command) -> None:
        self._write(encode_frame(command))

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)


def _refusal(refused: Refused) -> NodeError:
    if refused.is_fault:
        return EngineFault(refused.reason)
    if refused.is_short:
        return MemoryShort(refused.reason)
    return RowRefused(refused.reason, refused.param, refused.overflow)


class _Receiver(asyncio.Protocol):
    """Splits received bytes into reports."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._splitter = FrameSplitter()

    def data_received(self, data: bytes) -> None:
        link = self._link
        for body in self._splitter.feed(data):
            report = decode_report(body)
            if type(report) is Frame:
                link.on_frame(report)
            else:
                link.on_report(report)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.on_lost()
