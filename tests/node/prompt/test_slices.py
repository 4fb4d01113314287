"""A text tokenized slice by slice has the same tokens as the whole text."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from node.prompt import slices
from node.prompt.slices import Slice, Slicer
from tests.node.tokenizers import SPECIALS, byte_level, metaspace, prepending

SLICE, END = 60, 24
TOKENIZERS = {
    "byte level": byte_level(),
    "untrimmed": byte_level(trim_offsets=False),
    "metaspace first": metaspace(),
    "metaspace always": metaspace(scheme="always"),
    "prepending": prepending(),
}
PIECES = [
    *(*SPECIALS, "<mask>", "<|rest|>", " the weather", " a b c", "x.y(z)", "don't", "12345678"),
    *("é", "e\u0301", "🎉", "日本語。", " ", "  ", "\n", "\n\n    ", "----", "'", "\x00"),
]
LONG_RUNS = ["a", " ", "\n", "=", "é", "1", "ab", " \n"]


@pytest.fixture(autouse=True, scope="module")
def short_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_LENGTH", SLICE)
        patch.setattr(slices, "END_LENGTH", END)
        yield


def parted(tokenizer: Any, text: str) -> tuple[list[tuple[int, int]], int]:
    """Returns the tokens, each with its end, and the number of slices."""
    slicer, done, count = Slicer(tokenizer, lookahead=10), 0, 0
    found: list[tuple[int, int]] = []
    while True:
        piece = slicer.first(text, done) or slicer.whole(text[done:])
        found += ends_of(piece, done)
        done += piece.length
        count += 1
        if done >= len(text):
            return found, count


def ends_of(piece: Slice, begin: int) -> list[tuple[int, int]]:
    return [(number, begin + end) for number, (_, end) in zip(piece.ids, piece.spans, strict=True)]


def whole(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return [(number, end) for number, (_, end) in zip(encoding.ids, encoding.offsets, strict=True)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=list(TOKENIZERS))
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=80))
@settings(max_examples=150, deadline=None)
def test_slices_have_the_tokens_of_the_whole(tokenizer: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parted(tokenizer, text)[0] == whole(tokenizer, text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=list(TOKENIZERS))
@pytest.mark.parametrize("run", LONG_RUNS)
def test_so_have_those_of_a_text_without_words(tokenizer: Tokenizer, run: str) -> None:
    text = f"the weather {run * 500} is fine"
    assert parted(tokenizer, text)[0] == whole(tokenizer, text)


def test_a_text_of_words_is_parted() -> None:
    text = " the weather in Paris is fine today" * 20
    _, count = parted(TOKENIZERS["byte level"], text)
    assert count >= len(text) // SLICE


def test_a_tokenizer_that_puts_something_before_each_text_parts_none() -> None:
    text = "the weather in Paris is fine today " * 20
    assert Slicer(prepending(), 0).first(text, 0) is None
    assert parted(TOKENIZERS["prepending"], text) == (whole(prepending(), text), 1)


def test_a_short_rest_is_the_last_slice() -> None:
    slicer, text = Slicer(byte_level(), 0), "x" * SLICE
    assert slicer.first(text, 0) == slicer.whole(text)
    assert slicer.first("the weather" + text, len("the weather")) == slicer.whole(text)
