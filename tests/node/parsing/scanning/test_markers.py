import pytest

from node.parsing.scanning.markers import Markers


def find(
    markers: Markers, text: str, *, begin: int = 0, ended: bool = False, refused: int = -1
) -> tuple[int, str]:
    return markers.find(
        text, begin, len(text), ended=ended, counts=lambda at, marker: at != refused
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a<b>c", (1, "<b>")),
        ("a<bc><b>", (1, "<bc>")),
        ("none", (4, "")),
        ("some <", (5, "")),
        ("some <b", (5, "")),
        ("some <x", (7, "")),
        ("", (0, "")),
    ],
)
def test_finds_the_first_marker_or_what_may_become_one(text: str, found: tuple[int, str]) -> None:
    assert find(Markers(["<b>", "<bc>"]), text) == found


def test_of_markers_that_begin_together_the_longest_is_found() -> None:
    markers = Markers(["[A]", "[A]["])
    assert find(markers, "x[A][") == (1, "[A][")
    assert find(markers, "x[A]y") == (1, "[A]")
    assert find(markers, "x[A]") == (1, "")
    assert find(markers, "x[A]", ended=True) == (1, "[A]")


def test_a_marker_within_a_longer_one_waits_for_that() -> None:
    markers = Markers(["(ab)", "b"])
    assert find(markers, "x(ab") == (1, "")
    assert find(markers, "x(ab)") == (1, "(ab)")
    assert find(markers, "x(abx") == (3, "b")
    assert find(markers, "x(ab", ended=True) == (3, "b")


def test_what_does_not_count_is_passed_over() -> None:
    markers = Markers(["<b>"])
    assert find(markers, "<b><b>", refused=0) == (3, "<b>")
    assert find(markers, "<b>x", refused=0) == (4, "")


def test_nothing_is_withheld_at_the_end() -> None:
    assert find(Markers(["<b>"]), "a<b", ended=True) == (3, "")


def test_looks_only_within_its_bounds() -> None:
    markers = Markers(["<b>"])
    assert find(markers, "<b>a<b>", begin=1) == (4, "<b>")
    assert markers.find("a<b>", 0, 3, ended=True, counts=lambda at, marker: True) == (3, "")


def test_without_markers_nothing_is_found_or_withheld() -> None:
    assert find(Markers([]), "<b>") == (3, "")
    assert find(Markers([""]), "<b>") == (3, "")


def test_sets_of_markers_add_up() -> None:
    both = Markers(["<b>"]) | Markers(["<i>"])
    assert find(both, "a<i>") == (1, "<i>")
    assert set(both.texts) == {"<b>", "<i>"}
