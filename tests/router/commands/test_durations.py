"""Tests the reading of durations as people write them."""

import pytest

from router.commands.client import CommandFailed
from router.commands.durations import read_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("1.5h", 5400.0),
        ("1d", 86_400.0),
        ("2w", 1_209_600.0),
        ("1h30m", 5400.0),
        ("30", 30.0),
        (" 2 h ", 7200.0),
    ],
)
def test_a_length_of_time_is_read(text: str, seconds: float) -> None:
    assert read_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "0s", "-1m", "nans", "infd", "2y", "1e3s", "9999999d", "30m1h"]
)
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="not a duration"):
        read_s(text)
