"""A real engine process on the other end of a socketpair."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

import psutil

from node.ipc.child_process import linked_sockets
from node.ipc.framing import FrameSplitter, decode_report, encode_frame
from node.ipc.messages import (
    Command,
    Delta,
    EngineSpec,
    Frame,
    Load,
    Report,
    Shutdown,
)

_TIMEOUT_S = 60
R = TypeVar("R", bound=Report)


class EngineProcess:
    """The agent's side of one engine process. Every wait ends after a minute at most."""

    def __init__(self, spec: EngineSpec, **environment: str) -> None:
        self._link, theirs = linked_sockets()
        self._link.settimeout(_TIMEOUT_S)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "node.engine.worker", str(theirs.fileno()), spec.engine],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment},
                stderr=subprocess.PIPE,
            )
        self._reports = self._read()
        self.send(Load(spec))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()
        self.process.kill()
        self.process.communicate(timeout=_TIMEOUT_S)

    def send(self, *commands: Command) -> None:
        self._link.sendall(b"".join(map(encode_frame, commands)))

    def next(self, kind: type[R]) -> R:
        """The next report of that kind; others are skipped."""
        for report in self._reports:
            if isinstance(report, kind):
                return report
        raise AssertionError(f"the process ended without {kind.__name__}")

    def rest(self) -> list[Report]:
        """All that is still sent, until the process closes its connection."""
        return list(self._reports)

    def rows(self, count: int) -> dict[str, tuple[str, Delta]]:
        """Reads until so many requests have ended: their texts and their last deltas."""
        texts: dict[str, str] = {}
        ended: dict[str, tuple[str, Delta]] = {}
        while len(ended) < count:
            for delta in self.next(Frame).deltas:
                text = "".join(part.text for part in delta.parts)
                texts[delta.uid] = texts.get(delta.uid, "") + text
                if delta.finish is not None:
                    ended[delta.uid] = (texts[delta.uid], delta)
        return ended

    def hang_up(self) -> float:
        """Closes the agent's end and waits for the end of the process; the seconds of a processor
        that it has used from then on."""
        used = psutil.Process(self.process.pid).cpu_times()
        others_s = _ended_children_s()
        self._link.close()
        self.process.wait(_TIMEOUT_S)
        return _ended_children_s() - others_s - used.user - used.system

    def shut_down(self) -> tuple[int, str]:
        """Asks the process to end: its exit status and what it wrote to stderr."""
        self.send(Shutdown())
        return self.end()

    def end(self) -> tuple[int, str]:
        """Reads until the process closes its connection, and waits for its end."""
        for _ in self._reports:
            pass
        self._link.close()
        _, errors = self.process.communicate(timeout=_TIMEOUT_S)
        return self.process.returncode, errors.decode()

    def _read(self) -> Iterator[Report]:
        splitter = FrameSplitter()
        while data := self._link.recv(1 << 16):
            for body in splitter.feed(data):
                yield decode_report(body)


def _ended_children_s() -> float:
    """Returns the processor seconds of all children of this process that have ended."""
    times = os.times()
    return times.children_user + times.children_system
