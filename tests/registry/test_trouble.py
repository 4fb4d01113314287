from __future__ import annotations

import logging
from pathlib import Path

import pytest

from registry.errors import Conflict, RefusedRow, RegistryFull, RegistryLocked
from registry.trouble import SETTLED_S, Trouble
from tests.fakes import FakeClock

PATH = Path("/fleet/registry.db")


def test_trouble_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    trouble = Trouble(clock)
    trouble.on_write(None)
    assert (trouble.sentence, trouble.for_s) == ("", 0.0)
    for error in (RegistryFull(PATH), RegistryFull(PATH), RegistryLocked(PATH)):
        trouble.on_write(error)
        clock.advance(2.0)
        assert trouble.sentence == str(error)
    assert trouble.for_s == 6.0
    trouble.on_write(None)
    assert trouble.sentence, "another write failed a moment ago"
    clock.advance(SETTLED_S)
    trouble.on_write(None)
    trouble.on_write(None)
    assert (trouble.sentence, trouble.for_s) == ("", 0.0)
    assert caplog.messages == [
        f"Writes fail, and are tried again: {RegistryFull(PATH)}",
        "Writes succeed again, after 6 s.",
    ]


def test_trouble_is_over_though_nothing_more_is_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    trouble = Trouble(clock)
    trouble.on_write(RegistryFull(PATH))
    clock.advance(SETTLED_S * 2)
    assert trouble.sentence, "nothing was written since"
    trouble.on_write(RegistryFull(PATH))
    clock.advance(1.0)
    trouble.on_write(None)
    assert trouble.sentence
    clock.advance(SETTLED_S)
    assert (trouble.sentence, trouble.for_s) == ("", 0.0)
    trouble.on_write(RegistryFull(PATH))
    assert trouble.for_s == 0.0
    assert caplog.messages[1:] == ["Writes succeed again, after 21 s.", caplog.messages[0]]


@pytest.mark.parametrize("error", [Conflict("node name", "a"), RefusedRow(), ValueError("x")])
def test_what_is_wrong_with_one_write_implies_nothing_of_others(error: Exception) -> None:
    trouble = Trouble(FakeClock())
    trouble.on_write(error)
    assert trouble.sentence == ""
    trouble.on_write(RegistryFull(PATH))
    trouble.on_write(error)
    assert trouble.sentence == str(RegistryFull(PATH))
