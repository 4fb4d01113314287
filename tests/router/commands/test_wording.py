import pytest

from router.commands import wording


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (512, "0 KiB"), (270 * 1024**2, "270 MiB"), (16 * 1024**3, "16.0 GiB")],
)
def test_sizes_are_in_the_unit_of_their_kind(count: int | None, text: str) -> None:
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "just now"),
        (30, "30 s ago"),
        (600, "10 min ago"),
        (7300, "2 h ago"),
        (3e5, "3 days ago"),
    ],
)
def test_times_are_relative(seconds: float, text: str) -> None:
    assert wording.ago(1e6 - seconds, 1e6) == text


def test_an_expiry_is_ahead_past_or_never() -> None:
    assert wording.until(None, 0) == "never"
    assert wording.until(600, 0) == "in 10 min"
    assert wording.until(2_592_000, 0.1) == "in 30 days"
    assert wording.until(0, 600) == "10 min ago"


def test_long_lists_are_cut_with_a_count() -> None:
    assert wording.join_some(["a", "b"]) == "a, b"
    assert wording.join_some(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
