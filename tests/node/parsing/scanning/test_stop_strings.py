"""Stop strings, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.parsing.scanning.stop_strings import StopMatcher


def match(stops: tuple[str, ...], *pieces: str) -> tuple[str, bool]:
    matcher, out = StopMatcher(stops), ""
    for piece in pieces:
        text, hit = matcher.feed(piece)
        out += text
        if hit:
            return out, True
    return out + matcher.flush(), False


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ((), ("any", "thing"), ("anything", False)),
        (("",), ("text",), ("text", False)),
        (("END",), ("so E", "N", "D more"), ("so ", True)),
        (("END",), ("so E", "N", "ough"), ("so ENough", False)),
        (("END",), ("EEEN", "D"), ("EE", True)),
        (("aab",), ("aaa", "b"), ("a", True)),
        (("abcd", "bc"), ("abcd",), ("a", True)),
        (("bc", "abc"), ("xabc",), ("x", True)),
        (("x", "a"), ("ba", "x"), ("b", True)),
    ],
)
def test_finds_the_stop_string_that_ends_first(
    stops: tuple[str, ...], pieces: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    assert match(stops, *pieces) == expected


def test_withholds_only_what_could_begin_a_stop_string() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("one E") == ("one ", False)
    assert matcher.feed("x") == ("Ex", False)
    assert matcher.flush() == ""


TEXT = st.text("abc", max_size=12)


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple),
    pieces=st.lists(TEXT, max_size=6),
)
def test_every_cut_of_a_text_gives_the_same(stops: tuple[str, ...], pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = match(stops, text)
    assert match(stops, *pieces) == whole
    assert match(stops, *text) == whole
    emitted, hit = whole
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert hit == bool(ends)
    if ends:
        assert any(text[: min(ends)] == emitted + stop for stop in stops)
    else:
        assert emitted == text
