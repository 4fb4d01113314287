"""Sends the messages of a child process to the agent in order, without waiting for the agent to
read.

A socket buffers from a few KiB to a MiB. The agent reads continuously, but its event loop may be
busy or its process stopped, and a step of the engine must not wait for it.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable

MOST_BYTES = 16 * 1024**2
"""Buffer limit; beyond it `put` waits until the agent has read."""


class Outbox:
    """The sending side of a link. Thread-safe."""

    def __init__(self, link: socket.socket, on_broken: Callable[[], None]) -> None:
        """`on_broken` is called, from any thread, when the agent's end is closed."""
        self._link = link
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[memoryview] = deque()
        """Unsent data; the first item is being sent."""
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        """Sends buffered data. Most data is sent by the caller of `put`, since waking a thread
        costs more."""

    def put(self, data: bytes) -> None:
        with self._lock:
            sent_bytes = 0 if self._waiting else self._sent_at_once(data)
            if sent_bytes == len(data):
                return
            rest = memoryview(data)[sent_bytes:]
            while self._waiting_bytes + len(rest) > MOST_BYTES and self._waiting:
                self._changed.wait()
            self._waiting.append(rest)
            self._waiting_bytes += len(rest)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until the socket has accepted all data."""
        with self._changed:
            while self._waiting:
                self._changed.wait()

    def _sent_at_once(self, data: bytes) -> int:
        """Sends without waiting; returns the number of bytes that the socket accepted."""
        try:
            return self._link.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError:
            self._on_broken()
            return len(data)

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting[0]
            try:
                self._link.sendall(data)
            except ConnectionError:
                self._on_broken()
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                self._changed.notify_all()
