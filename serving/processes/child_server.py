"""Servers that are child processes, and never outlive this one.

Each child reads its standard input, which is kept open here, and exits at its end, so that even a
killed parent leaves none behind. Each leads its own session, so that Ctrl-C reaches only the
parent, the parent ends them in order, and a child's own children can be ended with it.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from serving.terminal.output import put

_LISTENING = re.compile(r"listening on (https?://\S+)")
_LAST_WORDS = 30
_GROUP_S = 1.5
"""Seconds that a child's own children may take to notice that it is gone."""
_POLL_S = 0.02


class ChildServer:
    """One running server. `on_line` gets each line of its standard output once it listens; with
    `loud`, its standard error is shown from then on."""

    def __init__(
        self, name: str, argv: Sequence[str], on_line: Callable[[str], None], *, loud: bool
    ) -> None:
        self.name = name
        self.ended = threading.Event()
        self._on_line = on_line
        self._listening: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._wants_loud = loud
        self._loud = False
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._readers = [
            self._thread(self._read_out, self._process.stdout),
            self._thread(self._read_err, self._process.stderr),
        ]

    def until_listening(self, timeout_s: float) -> str | None:
        """Returns the URL that the child prints, or None if it ends without. Raises
        `TimeoutError`."""
        try:
            url = self._listening.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"{self.name} has not started within {timeout_s:.0f} s") from None
        self._loud = self._wants_loud and url is not None
        return url

    def last_words(self) -> list[str]:
        """Returns the last lines of a child that has ended, as far as they have not been shown."""
        self._readers[1].join(_GROUP_S)
        return [] if self._loud else list(self._words)

    def stop(self, deadline_s: float) -> None:
        """Asks the child to end, and kills it at `deadline_s` with all that it started."""
        # Lines of a child that is ended on purpose are not shown.
        self._loud = False
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        self._end_group()
        for reader in self._readers:
            reader.join(_GROUP_S)

    def _end_group(self) -> None:
        patience_s = time.monotonic() + _GROUP_S
        while self._signal_group(0):
            if time.monotonic() > patience_s:
                self._signal_group(signal.SIGKILL)
                return
            time.sleep(_POLL_S)

    def _signal_group(self, which: int) -> bool:
        """Sends a signal to the child's process group; returns False if the group is empty."""
        try:
            os.killpg(self._process.pid, which)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _thread(
        self, read: Callable[[IO[str] | None], None], stream: IO[str] | None
    ) -> threading.Thread:
        thread = threading.Thread(target=read, args=(stream,), daemon=True)
        thread.start()
        return thread

    def _read_out(self, stream: IO[str] | None) -> None:
        assert stream is not None
        listening = False
        with stream:
            for line in stream:
                if listening:
                    self._on_line(line.rstrip("\n"))
                elif found := _LISTENING.search(line):
                    listening = True
                    self._listening.put(found[1])
        self._listening.put(None)
        self.ended.set()

    def _read_err(self, stream: IO[str] | None) -> None:
        assert stream is not None
        with stream:
            for line in stream:
                self._words.append(line.rstrip("\n"))
                if self._loud:
                    put(line, err=True, end="")
