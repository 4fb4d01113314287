"""When comments are sent while a caller waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from router.client.keepalive_comments import KeepAlive
from serving.http.exchange import Exchange
from tests.fakes import FakeClock

HOLD_S = 10.0


class Wire:
    """A connection that keeps what is sent, and a loop whose timers fire when the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        self.write: Callable[[bytes], None] = self.sent.append
        self.write_paused = False
        self.exchange = Exchange(self, b"POST", "1.1")
        self.exchange.body_complete = True
        self.comment = b": a\n\n"
        self.clock = FakeClock(0.0)
        self.due: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(time, "monotonic", self.clock)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        self.silence = KeepAlive(self.exchange, HOLD_S, self.begin, lambda: self.comment)

    async def drained(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def on_response_complete(self, exchange: Exchange) -> None: ...

    def begin(self) -> None:
        self.exchange.begin(200, ())

    def call_later(self, after_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.due.append((self.clock() + after_s, call))
        return self  # type: ignore[return-value]

    def cancel(self) -> None:
        self.due.clear()

    def go(self, seconds: float) -> int:
        """Advances the clock; returns the number of pieces that were sent meanwhile."""
        before, until_s = len(self.sent), self.clock() + seconds
        while self.due and self.due[0][0] <= until_s:
            self.clock.now_s, call = self.due.pop(0)
            call()
        self.clock.now_s = until_s
        return len(self.sent) - before


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def test_the_head_is_withheld_and_then_sent_with_the_first_comment(wire: Wire) -> None:
    wire.silence.start()
    wire.silence.start()
    assert wire.go(9.9) == 0
    assert wire.go(0.1) == 1
    assert wire.sent[0].startswith(b"HTTP/1.1 200 OK") and wire.comment in wire.sent[0]


def test_the_same_comment_is_repeated_only_at_each_interval(wire: Wire) -> None:
    wire.silence.start()
    wire.go(10.0)
    assert [wire.go(10.0) for _ in range(3)] == [1, 1, 1]


def test_a_new_comment_is_sent_within_a_second(wire: Wire) -> None:
    wire.silence.start()
    wire.go(10.0)
    for text in (b": b\n\n", b": c\n\n"):
        wire.comment = text
        assert wire.go(1.0) == 1
        assert text in wire.sent[-1]
    assert wire.go(9.0) == 0


def test_a_caller_that_reads_nothing_is_sent_nothing(wire: Wire) -> None:
    wire.silence.start()
    wire.go(10.0)
    wire.write_paused = True
    assert wire.go(30.0) == 0
    wire.write_paused = False
    assert wire.go(1.0) == 1


def test_nothing_is_sent_once_it_ends(wire: Wire) -> None:
    wire.silence.start()
    wire.go(10.0)
    wire.silence.stop()
    wire.silence.stop()
    assert wire.go(100.0) == 0
