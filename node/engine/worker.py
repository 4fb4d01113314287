"""The engine process: `python -m node.engine.worker FD ENGINE`, started by the agent.

FD is an inherited socket to the agent, whose first command names the model to load. The main thread
reads the socket; one engine thread loads, steps and frees the model, since MLX's streams belong to
a thread. A step never waits for the agent to read (`node.ipc.outbox`).
"""

import contextlib
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from node.engine.base import Engine, EngineFactory, LoadError
from node.engine.failures import Failures, FailureScope
from node.engine.model.blas import load_fast_blas
from node.ipc.framing import FrameSplitter, decode_command, encode_frame
from node.ipc.long_step import LongStep
from node.ipc.messages import (
    BROKEN_STATUS,
    STATS_S,
    WITHOUT_MLX,
    Broken,
    Cancel,
    ClearCache,
    Command,
    Delta,
    EngineSpec,
    EngineStats,
    Frame,
    Load,
    LoadFailed,
    Loading,
    Marked,
    MemoryLease,
    Refused,
    Report,
    SetLease,
    SetPressure,
    Shutdown,
    Submit,
)
from node.ipc.outbox import Outbox
from node.protocol.messages import FinishReason
from serving.logs.logs import log_like_parent

logger = logging.getLogger("node.engine.worker")

_ENGINES = {
    "text": ("node.engine.load", "load"),
    "scripted": ("node.engine.scripted.engine", "load"),
}
_RECEIVE_BYTES = 1 << 16


class Worker:
    """One engine and its link to the agent."""

    def __init__(self, link: socket.socket, engine: str) -> None:
        self._link = link
        self._engine = engine
        self._model = engine
        """Name of the model once the `Load` command has arrived, until then that of the engine."""
        self._outbox = Outbox(link, lambda: os._exit(0))
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._status = 1

    def run(self) -> int:
        """Serves until a `Shutdown` or a failed load and returns the exit status.

        Ends the process at once when the agent closes its end of the socket.
        """
        engine_thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        engine_thread.start()
        self._read()
        engine_thread.join()
        return self._status

    # --- main thread -------------------------------------------------------------------------

    def _read(self) -> None:
        splitter = FrameSplitter()
        while data := self._receive():
            for body in splitter.feed(data):
                command = decode_command(body)
                if isinstance(command, Cancel):
                    # Confirmed before it is queued: the engine may be in a long step.
                    self._send(Marked(command.uid, time.monotonic()))
                self._commands.put(command)

    def _receive(self) -> bytes:
        """Reads bytes from the agent; returns none once the engine thread has ended."""
        try:
            data = self._link.recv(_RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data and not self._ended.is_set():
            # An orphaned process must not keep its memory, and the engine thread may be in a long
            # step.
            os._exit(0)
        return data

    # --- engine thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            engine = self._load()
            if engine is not None:
                self._send(engine.info)
                self._run(engine)
                if events := engine.close():
                    self._send(Frame((), (), events))
                self._status = 0
        finally:
            self._ended.set()
            self._outbox.flush()
            # The agent closes its end once it has read everything, which wakes the main thread.
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    def _run(self, engine: Engine) -> None:
        try:
            _Service(engine, self._commands, self._send).run()
        except _EngineBroken as end:
            self._send(end.report)
            self._outbox.flush()
            sys.stderr.flush()
            # Without freeing anything: the engine's state cannot be trusted, and freeing its GPU
            # memory may never return.
            os._exit(BROKEN_STATUS)

    def _load(self) -> Engine | None:
        try:
            # Imported before the command is read, so that a spare process has done it already.
            factory = self._factory()
            spec = self._receive_spec()
            return factory(
                spec,
                lambda fraction: self._send(Loading(fraction)),
                lambda expected_s: self._send(LongStep(expected_s)),
            )
        except LoadError as error:
            self._send(LoadFailed(str(error)))
        except Exception as error:
            reason = f"The engine failed to load {self._model}: {error}"
            logger.exception("%s", reason)
            self._send(LoadFailed(reason))
        return None

    def _receive_spec(self) -> EngineSpec:
        command = self._commands.get()
        if not isinstance(command, Load):
            raise LoadError("The agent did not say what to load.")
        self._model = command.spec.model
        return command.spec

    def _factory(self) -> EngineFactory:
        if self._engine not in _ENGINES:
            raise LoadError(f"There is no engine {self._engine}.")
        if self._engine not in WITHOUT_MLX:
            load_fast_blas()
        module, name = _ENGINES[self._engine]
        factory: EngineFactory = getattr(importlib.import_module(module), name)
        return factory

    # --- both threads ------------------------------------------------------------------------

    def _send(self, report: Report) -> None:
        self._outbox.put(encode_frame(report))


class _EngineBroken(Exception):
    """The engine cannot go on; `report` goes to the agent."""

    def __init__(self, report: Broken) -> None:
        super().__init__(report.reason)
        self.report = report


class _Service:
    """Runs in the engine thread between load and shutdown."""

    def __init__(
        self,
        engine: Engine,
        commands: "queue.SimpleQueue[Command]",
        send: Callable[[Report], None],
    ) -> None:
        self._engine = engine
        self._commands = commands
        self._send = send
        self._stats_due_s: float | None = None
        """Monotonic time of the next report of the state; None if it has not changed."""
        self._lease: MemoryLease | None = None
        """The newest lease. When it is met, all older ones are."""
        self._open: list[int] = []
        """Numbers of lease commands that are not confirmed yet."""
        self._done: list[int] = []
        """Numbers of commands to confirm with the next report of the state."""
        self._failures = Failures()

    def run(self) -> None:
        """Serves until a `Shutdown`. Raises `_EngineBroken`."""
        engine = self._engine
        # The prefixes that an earlier process left on disk.
        self._send_frame([])
        while True:
            for command in self._next_commands(self._wait_s()):
                if isinstance(command, Shutdown):
                    return
                self._apply(command)
            if engine.wait_s() == 0:
                self._send_frame(self._step())
                self._schedule_stats()
            if self._stats_due_s is not None and time.monotonic() >= self._stats_due_s:
                self._send_stats()

    def _wait_s(self) -> float | None:
        """Returns the seconds until a step or a report of the state is due; None without either."""
        step_s = self._engine.wait_s()
        if self._stats_due_s is None or step_s == 0:
            return step_s
        stats_s = max(self._stats_due_s - time.monotonic(), 0.0)
        return stats_s if step_s is None else min(step_s, stats_s)

    def _next_commands(self, wait_s: float | None) -> list[Command]:
        """Returns the queued commands; waits up to `wait_s` seconds for the first one, without
        limit if None."""
        commands: list[Command] = []
        try:
            if wait_s != 0:
                commands.append(self._commands.get(timeout=wait_s))
            while True:
                commands.append(self._commands.get_nowait())
        except queue.Empty:
            return commands

    def _apply(self, command: Command) -> None:
        try:
            deltas = self._do(command)
        except Exception as error:  # noqa: BLE001 - the outermost handler, as for a step
            deltas = self._failed(error, reason := f"The engine failed on a command: {error}")
            if isinstance(command, Submit):
                self._send(Refused(command.request.uid, reason, is_fault=True))
        self._send_frame(deltas)
        self._schedule_stats()
        if isinstance(command, SetLease | ClearCache):
            self._send_stats()

    def _do(self, command: Command) -> list[Delta]:
        engine = self._engine
        match command:
            case Submit():
                response = engine.submit(command.request)
                if response is not None:
                    self._send(response)
            case Cancel():
                return engine.cancel(command.uid)
            case SetLease():
                # Set first: if the engine fails half-way, its memory is compared with this lease.
                self._lease = command.lease
                self._open.append(command.number)
                engine.set_lease(command.lease)
            case SetPressure():
                engine.set_pressure(command.level)
            case ClearCache():
                engine.clear_cache()
                self._done.append(command.number)
        return []

    def _step(self) -> list[Delta]:
        try:
            deltas = self._engine.step()
        except Exception as error:  # noqa: BLE001 - one bad step must not end the model
            return self._failed(error, f"The engine failed on this step: {error}")
        if any(delta.token_count and delta.finish is not FinishReason.ERROR for delta in deltas):
            self._failures.note_token()
        return deltas

    def _failed(self, error: Exception, reason: str) -> list[Delta]:
        """Drops the rows of an engine that has just raised and returns their last deltas. Raises
        `_EngineBroken` if the process must end, after sending the parts that the rows still had."""
        logger.error("%s", reason, exc_info=error)
        scope = self._failures.judge(error)
        try:
            deltas = self._engine.reset(reason)
        except Exception:
            logger.exception("The engine's rows cannot be freed.")
            scope, deltas = max(scope, FailureScope.PROCESS), []
        if scope is FailureScope.ROWS:
            return deltas
        self._send_frame([_unfinished(delta) for delta in deltas if delta.parts])
        is_overload = scope is FailureScope.OVERLOADED_PROCESS
        reason = f"{reason.removesuffix('.')}; the next request starts a new engine process."
        raise _EngineBroken(Broken(reason, is_overload))

    def _send_frame(self, deltas: list[Delta]) -> None:
        for response in self._engine.take_responses():
            self._send(response)
        progress = self._engine.take_progress()
        cache_events = self._engine.take_cache_events()
        if deltas or progress or cache_events:
            self._send(Frame(tuple(deltas), progress, cache_events))

    def _schedule_stats(self) -> None:
        # Delayed, since the agent needs no report for each short request.
        if self._stats_due_s is None:
            self._stats_due_s = time.monotonic() + STATS_S

    def _send_stats(self) -> None:
        stats = self._engine.stats()
        if self._lease is not None and _is_within(stats, self._lease):
            self._done += self._open
            self._open = []
        done, self._done = tuple(self._done), []
        self._stats_due_s = time.monotonic() + STATS_S if self._open else None
        self._send(msgspec.structs.replace(stats, confirmed=done))


def _unfinished(delta: Delta) -> Delta:
    """Returns the delta without the end of the row."""
    return msgspec.structs.replace(delta, finish=None, usage=None, error=None)


def _is_within(stats: EngineStats, lease: MemoryLease) -> bool:
    # Live and stored KV are compared as one sum: live KV may use the space of stored KV, and
    # running rows keep theirs. Pinned KV stays, and the agent takes it into account.
    kv_bytes = stats.live_kv_bytes + stats.stored_kv_bytes
    pinned_bytes = max(stats.pinned_kv_bytes - lease.stored_kv_bytes, 0)
    return kv_bytes - pinned_bytes <= lease.live_kv_bytes + lease.stored_kv_bytes


def main(arguments: list[str]) -> int:
    """Runs the engine process and returns its exit status."""
    # Ctrl-C signals the whole process group; the agent decides how to react to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_like_parent()
    with socket.socket(fileno=int(arguments[0])) as link:
        return Worker(link, arguments[1]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
