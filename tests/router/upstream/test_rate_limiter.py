from __future__ import annotations

from node.protocol.messages import StatusEvent
from router.upstream.rate_limiter import BURST, EVENTS_PER_S, STATUS_COST, TURN, RateLimiter
from tests.fakes import FakeClock
from tests.router.conftest import FINISHED, node_status


def rests(pace: RateLimiter, count: int) -> list[float]:
    return [each for _ in range(count) if (each := pace.on_event(FINISHED)) is not None]


def test_all_accounts_that_an_agent_keeps_are_read_without_a_pause() -> None:
    found = rests(RateLimiter(FakeClock()), 10_000)
    assert set(found) == {0.0}
    assert len(found) == 10_000 // TURN, "others have a turn now and then"


def test_a_node_that_never_ends_is_read_at_its_pace() -> None:
    clock = FakeClock()
    pace = RateLimiter(clock)
    received = 0
    while clock.now_s < 1010.0:
        received += 1
        clock.advance(pace.on_event(FINISHED) or 0.0)
    assert abs(received - BURST - 10.0 * EVENTS_PER_S) < 2 * TURN


def test_a_status_costs_more() -> None:
    clock = FakeClock()
    pace = RateLimiter(clock)
    status = StatusEvent(node_status())
    received = 0
    while not pace.on_event(status):
        received += 1
    assert abs(received - BURST / STATUS_COST) <= TURN


def test_a_silent_node_may_send_a_burst_again() -> None:
    clock = FakeClock()
    pace = RateLimiter(clock)
    assert any(rests(pace, 60_000))
    clock.advance(60.0)
    pace.on_event(FINISHED)
    assert not any(rests(pace, 40_000))
