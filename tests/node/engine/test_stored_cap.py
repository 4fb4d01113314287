"""Tests the limit of stored KV while memory is short, over series of levels."""

from node.engine.stored_cap import STEP_S, StoredCap, StoredKv
from node.ipc.messages import Pressure

NONE, SOFT, HARD = Pressure.NONE, Pressure.SOFT, Pressure.HARD
LEASE = 1000


class Engine:
    """Stores as much as it may, up to what it is set to store."""

    def __init__(self, stored: int, *, pinned: int = 0) -> None:
        self.cap = StoredCap()
        self.stored = stored
        self.pinned = pinned
        self.now_s = 1000.0

    def at(self, level: Pressure, after_s: float = 0.0) -> int | None:
        self.now_s += after_s
        stored_kv = StoredKv(self.stored, self.pinned, LEASE)
        most = self.cap.update(level, stored_kv, self.now_s)
        self.stored = min(self.stored, LEASE if most is None else most)
        return most


def series(engine: Engine, *steps: tuple[Pressure, float]) -> list[int | None]:
    return [engine.at(level, after_s) for level, after_s in steps]


def test_without_pressure_the_lease_alone_counts() -> None:
    engine = Engine(900)
    assert series(engine, (NONE, 0), (NONE, STEP_S)) == [None, None]
    assert engine.cap.is_unlimited and engine.cap.due_s() is None


def test_while_memory_is_short_a_quarter_is_cut_at_once_and_then_in_each_step() -> None:
    engine = Engine(800)
    caps = series(engine, (SOFT, 0), (SOFT, STEP_S - 1), (SOFT, 1), (SOFT, STEP_S), (SOFT, 1))
    assert caps == [600, 600, 450, 337, 337]


def test_what_is_stored_counts_and_not_what_might_be() -> None:
    engine = Engine(80)
    assert engine.at(SOFT) == 60
    engine.stored = 20
    assert engine.at(SOFT, STEP_S) == 15


def test_a_late_step_is_one_step() -> None:
    assert series(Engine(800), (SOFT, 0), (SOFT, 10 * STEP_S)) == [600, 450]


def test_what_is_pinned_and_one_session_stay() -> None:
    engine = Engine(800, pinned=100)
    engine.cap.note_session("long", 500)
    engine.cap.note_session("short", 10)
    assert series(engine, (SOFT, 0), (SOFT, STEP_S), (SOFT, STEP_S)) == [600, 600, 600]
    assert Engine(0).at(SOFT) == 0


def test_a_session_that_grows_has_room_at_once() -> None:
    engine = Engine(100)
    engine.at(SOFT)
    for length in (120, 140, 700):
        engine.cap.note_session("it", length)
        assert engine.at(SOFT) == length
    engine.cap.note_session("it", 3)
    assert engine.at(SOFT) == 700, "the sequence stores its prompt first"
    engine.cap.note_session("beyond", 2 * LEASE)
    assert engine.at(SOFT) == LEASE


def test_a_session_of_long_ago_counts_no_more() -> None:
    engine = Engine(100)
    engine.cap.note_session("long ago", 500)
    for number in range(16):
        engine.cap.note_session(f"{number}", 20)
    assert engine.at(SOFT) == 75


def test_very_short_of_memory_only_what_is_pinned_stays() -> None:
    engine = Engine(800, pinned=100)
    engine.cap.note_session("it", 500)
    assert series(engine, (HARD, 0), (HARD, STEP_S)) == [100, 100]
    assert engine.cap.due_s() is None
    assert series(engine, (SOFT, 1), (SOFT, STEP_S)) == [600, 600]


def test_it_grows_by_quarters_of_the_lease_until_it_is_free() -> None:
    engine = Engine(800)
    engine.at(HARD)
    assert engine.at(NONE, 5) == 0
    caps = series(engine, (NONE, STEP_S - 1), (NONE, 1), *[(NONE, STEP_S)] * 3)
    assert caps == [0, 250, 500, 750, None]
    assert engine.cap.is_unlimited and engine.cap.due_s() is None


def test_it_grows_from_what_the_floor_has_kept() -> None:
    engine = Engine(800)
    engine.cap.note_session("it", 500)
    series(engine, *[(SOFT, STEP_S)] * 5)
    assert series(engine, (NONE, 0), (NONE, STEP_S)) == [500, 750]


def test_a_level_that_flickers_cuts_no_more_often() -> None:
    caps = series(Engine(800), (SOFT, 0), (NONE, 10), (SOFT, 5), (NONE, 5), (SOFT, STEP_S - 20))
    assert caps == [600, 600, 600, 600, 450]


def test_pressure_that_returns_cuts_at_once_what_has_grown_since() -> None:
    engine = Engine(800)
    series(engine, (SOFT, 0), (NONE, 10), (NONE, STEP_S))
    engine.stored = 840
    assert engine.at(SOFT) == 630


def test_it_reports_when_it_changes_next() -> None:
    engine = Engine(800)
    engine.at(SOFT)
    began_s = engine.now_s
    assert engine.cap.due_s() == began_s + STEP_S
    engine.at(NONE, 10)
    assert engine.cap.due_s() == began_s + 10 + STEP_S
