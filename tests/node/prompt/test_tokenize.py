"""Reusing earlier texts does not change the tokens of a text."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from node.prompt import slices
from node.prompt import tokenize as encoder_module
from node.prompt.slices import SLICE_LENGTH
from node.prompt.tokenize import SAMPLE_LENGTH, Encoded, PromptEncoder, TooManyTokens, common_length
from tests.node.tokenizers import SPECIALS, byte_level, metaspace, prepending

TOKENIZERS = {
    "byte level": byte_level(),
    "untrimmed": byte_level(trim_offsets=False),
    "without specials": byte_level(specials=False),
    "metaspace first": metaspace(),
    "metaspace always": metaspace(scheme="always"),
    "prepending": prepending(),
}
PIECES = [
    *SPECIALS,
    "<|end|>s",
    "<mask>",
    "<|rest|>",
    "<|",
    "|>",
    " ",
    "  ",
    "\n",
    "\n\n",
    "a",
    "the",
    "é",
    "🎉",
]


class Counting:
    """A tokenizer that counts the characters passed to it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.length = 0
        self.longest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        self.length += sum(map(len, texts))
        self.longest = max(self.longest, *map(len, texts))
        encodings: list[Any] = self._tokenizer.encode_batch(
            texts, add_special_tokens=add_special_tokens
        )
        return encodings


def without_memory(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, [end for _, end in encoding.offsets]


def assert_same(tokenizer: Tokenizer, encoded: Encoded) -> None:
    assert (list(encoded.ids), list(encoded.ends)) == without_memory(tokenizer, encoded.text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=list(TOKENIZERS))
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_texts_after_each_other(tokenizer: Tokenizer, data: st.DataObject) -> None:
    encoder = PromptEncoder(tokenizer)
    texts = [""]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_module, "SHORT_LENGTH", 1)
        patch.setattr(encoder_module, "PROBE_LENGTH", 1)
        patch.setattr(encoder_module, "TAIL_LENGTH", 4)
        patch.setattr(slices, "SLICE_LENGTH", 40)
        patch.setattr(slices, "END_LENGTH", 16)
        for _ in range(4):
            # Each begins like one before it, for as long as it likes.
            earlier = data.draw(st.sampled_from(texts))
            kept = data.draw(st.integers(0, len(earlier)))
            added = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=12)))
            texts.append(earlier[:kept] + added)
            encoded = encoder.encode(texts[-1])
            assert_same(tokenizer, encoded)


def session(turns: int) -> str:
    return "".join(f"<|begin|>user\nthe weather {turn}<|end|>\n" * 20 for turn in range(turns))


def test_a_longer_session_costs_what_is_new_and_a_repeat_nothing() -> None:
    backend = Counting(byte_level())
    encoder = PromptEncoder(backend)
    old, new = session(10), session(11)
    encoder.encode(old)
    backend.length = 0
    encoder.encode(new)
    assert len(new) - len(old) <= backend.length < len(new) - len(old) + 200
    backend.length = 0
    encoder.encode(new)
    assert backend.length == 0


def test_short_texts_are_not_kept_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Counting(byte_level())
    encoder = PromptEncoder(backend)
    for _ in range(2):
        encoder.encode("a" * 10)
    assert backend.length == 20
    texts = [letter * 2000 for letter in "abc"]
    monkeypatch.setattr(encoder_module, "KEPT_LENGTH", 5000)
    for text in texts:
        encoder.encode(text)
    backend.length = 0
    for text in reversed(texts[1:]):
        encoder.encode(text)
    assert backend.length == 0
    encoder.encode(texts[0])
    assert backend.length == 2000


# --- texts that are too long -----------------------------------------------------------------


def plain() -> Tokenizer:
    """Returns a tokenizer whose tokens have at most a few bytes each."""
    learned = byte_level()
    made = Tokenizer(learned.model)
    made.pre_tokenizer = learned.pre_tokenizer
    return made


def test_what_is_too_long_for_its_tokens_is_not_tokenized() -> None:
    backend = Counting(plain())
    encoder = PromptEncoder(backend)
    text = "the weather in Paris is fine today. " * 20_000
    with pytest.raises(TooManyTokens) as caught:
        encoder.encode(text, 1000)
    assert backend.length == SAMPLE_LENGTH
    tokens = len(plain().encode(text, add_special_tokens=False).ids)
    assert caught.value.tokens == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (byte_level(), "the weather in Paris is fine today. " * 20_000),
        (byte_level(), "=" * 700_000),
        # What puts something before each text cannot tokenize it in slices.
        (prepending(), "the weather in Paris is fine today. " * 20_000),
    ],
    ids=["words", "one run", "not to be parted"],
)
def test_one_that_could_fit_is_tokenized_until_it_does_not(tokenizer: Tokenizer, text: str) -> None:
    backend = Counting(tokenizer)
    with pytest.raises(TooManyTokens) as caught:
        PromptEncoder(backend).encode(text, 10_000)
    assert backend.longest <= SLICE_LENGTH
    assert backend.length <= 5 * SLICE_LENGTH
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert caught.value.tokens == pytest.approx(tokens, rel=0.1)


@pytest.mark.parametrize("tokenizer", [byte_level(), prepending()], ids=["parted", "whole"])
@pytest.mark.parametrize("length", [500, 50_000])
def test_the_last_token_that_fits_is_taken(tokenizer: Tokenizer, length: int) -> None:
    text = ("the weather in Paris is fine today. " * 2000)[:length]
    encoder = PromptEncoder(tokenizer)
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    # With and without what is kept of the text.
    for _ in range(2):
        with pytest.raises(TooManyTokens) as caught:
            encoder.encode(text, tokens - 1)
        assert caught.value.tokens == tokens
        assert_same(tokenizer, encoder.encode(text, tokens))


def test_a_text_that_is_too_long_is_not_kept() -> None:
    encoder = PromptEncoder(byte_level())
    kept = encoder.encode(session(3))
    with pytest.raises(TooManyTokens):
        encoder.encode(session(30), 2000)
    assert encoder.encode(session(3)) is kept


def test_threads_share_an_encoder() -> None:
    tokenizer = byte_level()
    encoder = PromptEncoder(tokenizer)
    found: list[Encoded] = []
    texts = [session(turns) for turns in range(1, 9)]
    threads = [
        threading.Thread(target=lambda text=text: found.append(encoder.encode(text)))
        for text in texts * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    for encoded in found:
        assert_same(tokenizer, encoded)


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_common_length_is_that_of_the_longest_common_beginning(first: str, second: str) -> None:
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == min(
        len(first), len(second)
    )
