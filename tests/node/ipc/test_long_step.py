"""Tests the time for which a step counts as progress."""

from node.ipc.long_step import MARKS, PATIENCE, LongStepWatch


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_marks_grow_within_four_times_of_what_a_step_should_take_and_no_further() -> None:
    clock = Clock()
    watch = LongStepWatch(clock)
    watch.begin(80.0)
    seen = []
    for _ in range(8):
        seen.append(watch.marks)
        clock.now_s += 60.0
    assert seen[:6] == sorted(set(seen[:6])), "after each minute there is more"
    clock.now_s = 100.0 + PATIENCE * 80.0
    assert watch.marks == MARKS
    clock.now_s += 1000.0
    assert watch.marks == MARKS


def test_marks_stay_when_a_step_is_over() -> None:
    clock = Clock()
    watch = LongStepWatch(clock)
    watch.begin(10.0)
    clock.now_s += 20.0
    watch.end()
    assert watch.marks == MARKS // 2
    clock.now_s += 1000.0
    watch.end()
    assert watch.marks == MARKS // 2
    watch.begin(10.0)
    assert watch.marks == MARKS // 2
    clock.now_s += 10.0
    assert watch.marks == MARKS // 2 + MARKS // 4
    # The next one begins where nothing else has been reported.
    watch.begin(10.0)
    clock.now_s += 40.0
    assert watch.marks == 2 * MARKS - MARKS // 4
