"""Sizes and lengths of time as people write and read them."""

import pytest

from serving.units import duration, gib, read_duration_s, read_flag, size, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("1d", 86_400.0), ("2w", 1_209_600.0)),
        *(("30", 30.0), (" 2 h ", 7200.0), ("0", 0.0)),
        *(("2m30s", 150.0), ("1h 30m", 5400.0), ("1d1s", 86_401.0)),
    ],
)
def test_a_length_of_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "-1m",
        "nans",
        "infd",
        "2y",
        "1e3s",
        "9999999d",
        "30m1h",
        "1h1h",
        "2m30",
        "53w",
        "²s",
    ],
)
def test_what_is_no_length_of_time_or_more_than_a_year_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.5, "0.5s"), (30.0, "30s"), (90.0, "90s"), (120.0, "2m"), (3600.0, "1h")],
)
def test_a_duration_is_spelled_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert read_duration_s(text) == seconds


def test_a_flag_is_yes_or_no() -> None:
    assert [read_flag(each) for each in ("1", "TRUE", "yes", "On")] == [True] * 4
    assert [read_flag(each) for each in ("0", "False", "no", "OFF", "")] == [False] * 5
    with pytest.raises(ValueError):
        read_flag("maybe")


def test_a_size_has_the_largest_unit_that_fits() -> None:
    assert [size(each) for each in (0, 2**20 - 1, 2**20, 2**30 - 1, 2**34)] == [
        *("0 KiB", "1024 KiB", "1 MiB", "1024 MiB", "16.0 GiB")
    ]
    assert gib(2**29) == "0.5 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.0, "59 s"), (61.0, "1 min"), (3600.0, "1 h"), (260_000.0, "3 days")],
)
def test_a_rounded_length_of_time_has_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text
