"""The engine process: `python -m node.worker FD SPEC`, started by the agent.

FD is an inherited socket to the agent, SPEC an `EngineSpec` as JSON. The main thread reads the
socket; one engine thread owns load, step and free, since MLX's streams belong to a thread.
"""

import contextlib
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback

import msgspec

from node.engine.base import Engine, EngineFactory, LoadError
from node.engine.blas import load_fast_blas
from node.framing import FrameSplitter, decode_command, encode_frame
from node.types import (
    Cancel,
    Command,
    Delta,
    EngineSpec,
    Frame,
    LoadFailed,
    Loading,
    Marked,
    Report,
    Shutdown,
    Submit,
)

_ENGINES = {
    "text": ("node.engine.text", "load"),
    "scripted": ("node.engine.scripted", "load"),
}
_WITHOUT_MLX = {"scripted"}
_RECEIVE_BYTES = 1 << 16


class Worker:
    """One engine and its link to the agent."""

    def __init__(self, link: socket.socket, spec: EngineSpec) -> None:
        self._link = link
        self._spec = spec
        self._sending = threading.Lock()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._status = 1

    def run(self) -> int:
        """Serves until a `Shutdown` or a failed load; the exit status.

        Ends the process at once when the agent closes its end.
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
                    # Before the queue: the engine may be in the middle of a long step.
                    self._send(Marked(command.uid, time.monotonic()))
                self._commands.put(command)

    def _receive(self) -> bytes:
        """Bytes of the agent; none once the engine thread has ended."""
        try:
            data = self._link.recv(_RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data and not self._ended.is_set():
            # No orphan may hold memory, and the engine thread may be busy for long.
            os._exit(0)
        return data

    # --- engine thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            engine = self._load()
            if engine is not None:
                self._send(engine.info)
                self._step_until_shutdown(engine)
                engine.close()
                self._status = 0
        finally:
            self._ended.set()
            # Wakes the main thread, unless the agent was first to hang up.
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def _load(self) -> Engine | None:
        try:
            return self._factory()(self._spec, lambda fraction: self._send(Loading(fraction)))
        except LoadError as error:
            self._send(LoadFailed(str(error)))
        except Exception as error:  # noqa: BLE001 - the edge: the agent gets a sentence
            traceback.print_exc()
            self._send(LoadFailed(f"The engine failed to load {self._spec.model}: {error}"))
        return None

    def _factory(self) -> EngineFactory:
        if self._spec.engine not in _ENGINES:
            raise LoadError(f"There is no engine {self._spec.engine}.")
        if self._spec.engine not in _WITHOUT_MLX:
            load_fast_blas()
        module, name = _ENGINES[self._spec.engine]
        factory: EngineFactory = getattr(importlib.import_module(module), name)
        return factory

    def _step_until_shutdown(self, engine: Engine) -> None:
        while True:
            for command in self._take(engine.wait_s()):
                if isinstance(command, Shutdown):
                    return
                self._apply(engine, command)
            if engine.wait_s() == 0:
                self._send_frame(self._step(engine))

    def _take(self, wait_s: float | None) -> list[Command]:
        """The queued commands; waits for the first one up to `wait_s`."""
        commands: list[Command] = []
        try:
            if wait_s != 0:
                commands.append(self._commands.get(timeout=wait_s))
            while True:
                commands.append(self._commands.get_nowait())
        except queue.Empty:
            return commands

    def _apply(self, engine: Engine, command: Submit | Cancel) -> None:
        if isinstance(command, Submit):
            self._send(engine.submit(command.request))
            return
        delta = engine.cancel(command.uid)
        if delta is not None:
            self._send_frame([delta])

    def _step(self, engine: Engine) -> list[Delta]:
        try:
            return engine.step()
        except Exception as error:  # noqa: BLE001 - the edge: one bad step must not end the model
            traceback.print_exc()
            return engine.reset(f"The engine failed on this step: {error}")

    # --- both threads ------------------------------------------------------------------------

    def _send_frame(self, deltas: list[Delta]) -> None:
        if deltas:
            self._send(Frame(tuple(deltas)))

    def _send(self, report: Report) -> None:
        data = encode_frame(report)
        try:
            with self._sending:
                self._link.sendall(data)
        except ConnectionError:
            os._exit(0)


def main(arguments: list[str]) -> int:
    """Runs the engine process; its exit status."""
    # Ctrl-C goes to the whole process group; the agent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = msgspec.json.decode(arguments[1], type=EngineSpec)
    with socket.socket(fileno=int(arguments[0])) as link:
        return Worker(link, spec).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
