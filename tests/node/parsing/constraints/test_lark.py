"""The pieces of a grammar mean what they spell, whatever they contain."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.parsing.constraints.lark import Lark
from tests.node.parsing.drawing import Drawer, outputs, text_of

MARKERS = ("<|x|>", "<|xy|>", "[ARGS]")
ODD = [
    "",
    'a"b\\c',
    "\x00\x1f\x7f",
    "\u2028é😀",
    "%json {}",
    "// # ; | ( ) [ ] { }",
    "a\tb\r\n",
    '"""',
    "\\n",
    "<[256]>",
    "start: x",
]


def takes(start: str, lark: Lark, drawer: Drawer, text: str) -> bool:
    return drawer.takes(lark.grammar(start), drawer.cut(text))


@pytest.mark.parametrize("text", ODD)
def test_a_text_is_exactly_that_text(text: str) -> None:
    drawer = Drawer()
    lark = drawer.lark()
    start = lark.text(text)
    assert takes(start, lark, drawer, text)
    assert not takes(start, lark, drawer, f"{text}a")


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_accepted(text: str) -> None:
    drawer = Drawer(MARKERS)
    lark = drawer.lark()
    assert takes(lark.text(text), lark, drawer, text)


def test_markers_of_the_vocabulary_are_tokens() -> None:
    drawer = Drawer(MARKERS)
    lark = drawer.lark()
    start = lark.text("a<|xy|><|x|>b")
    assert takes(start, lark, drawer, "a<|xy|><|x|>b")
    spelled = [(bytes([byte]), False) for byte in b"a<|xy|><|x|>b"]
    assert not drawer.takes(lark.grammar(start), spelled)
    assert lark.is_token("<|x|>")
    assert not lark.is_token("a<|x|>")
    assert lark.prefer(("<tool>", "[ARGS]")) == "[ARGS]"
    assert lark.prefer(("<tool>", "<call>")) == "<tool>"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", ""),
        ("a/b", "a/b"),
        (r"a\/b[/]\\/", "a/b/\\/"),
        ("a\nb\\\nc\rd\te\x00\x7f", "a\nb\nc\rd\te\x00\x7f"),
        ("^ab$", "ab"),
        ("(?i)ab", "AB"),
        ("[0-9]{2}|é+", "éé"),
        ("#|//", "//"),
    ],
)
def test_a_pattern_matches_all_of_the_text(pattern: str, text: str) -> None:
    drawer = Drawer()
    lark = drawer.lark()
    start = lark.regex(pattern)
    assert takes(start, lark, drawer, text)
    assert not takes(start, lark, drawer, f"{text}!")


@pytest.mark.parametrize("closer", ["</a>", '"\\', "<|x|>", "\n<|x|>", ".*<|xy|>\n", "aab"])
def test_text_continues_until_its_closer(closer: str) -> None:
    drawer = Drawer(MARKERS)
    lark = drawer.lark()
    start = f"{lark.until(closer)} {lark.text('!')}"
    for before in ("", "x", "a\n\nb", "é</", "\\", "<|", "a"):
        assert takes(start, lark, drawer, f"{before}{closer}!")
    assert not takes(start, lark, drawer, f"{closer}{closer}!")
    assert not takes(start, lark, drawer, "x!")


@pytest.mark.parametrize("closer", [">", "<|x|>", "\n<|x|>"])
def test_what_is_drawn_contains_the_closer_once(closer: str) -> None:
    drawn = outputs(MARKERS, lambda lark: lark.until(closer), range(30))
    assert len(drawn) > 5
    for _, pieces in drawn:
        assert text_of(pieces).index(closer) == len(text_of(pieces)) - len(closer)


def test_expressions_are_put_together() -> None:
    drawer = Drawer()
    lark = drawer.lark()
    word = lark.one_of([lark.text("a"), lark.text("bc")])
    start = f"{lark.many(word, lark.text(', '))} {lark.optional(lark.text('.'))}"
    for text in ("a", "a, bc, a", "bc."):
        assert takes(start, lark, drawer, text)
    for text in ("", "a, ", "a bc", ".", "a.."):
        assert not takes(start, lark, drawer, text)


def test_the_same_expression_is_one_rule() -> None:
    lark = Drawer().lark()
    assert lark.json({"type": "null"}, "p") == lark.json({"type": "null"}, "p")
    assert lark.until("</a>") == lark.until("</a>")
