"""A text has no fewer tokens than its length divided by that of the longest token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from node.prompt.token_bytes import COMPOSED, TokenBytes, token_bytes
from tests.node.tokenizers import byte_level, metaspace, prepending


def bare(tokenizer: Tokenizer) -> Tokenizer:
    """Removes added tokens that strip the space around them."""
    model = tokenizer.model
    made = Tokenizer(model)
    made.normalizer, made.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    return made


def missing(*letters: str) -> Tokenizer:
    """Returns a byte-level tokenizer whose vocabulary lacks some bytes."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters))
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def composing(tokenizer: Tokenizer) -> Tokenizer:
    made = bare(tokenizer)
    made.normalizer = normalizers.NFC()
    return made


KNOWN = {
    "byte level": bare(byte_level()),
    "composing": composing(byte_level()),
    "in bytes": bare(prepending()),
    "with gaps": missing("b", "Ā"),
}


@pytest.mark.parametrize("tokenizer", KNOWN.values(), ids=list(KNOWN))
@given(text=st.text() | st.text("a b\x00ée\u0301가🎉"))
def test_no_text_has_fewer_tokens(tokenizer: Tokenizer, text: str) -> None:
    found = token_bytes(tokenizer)
    assert found is not None
    assert found.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_longest_token_counts_as_it_stands_in_a_text() -> None:
    vocabulary = bare(byte_level()).get_vocab()
    assert token_bytes(KNOWN["byte level"]) == TokenBytes(max(map(len, vocabulary)))
    composed = token_bytes(KNOWN["composing"])
    assert composed == TokenBytes(COMPOSED * max(map(len, vocabulary)))
    named = bare(byte_level())
    named.add_special_tokens([AddedToken("<|" + "é" * 50 + "|>", normalized=False)])
    assert token_bytes(named) == TokenBytes(104)


def test_bytes_without_a_token_do_not_count() -> None:
    found = token_bytes(KNOWN["with gaps"])
    assert found == TokenBytes(1, b"\x00b")
    assert found.least_tokens("abb\x00") == 1


def wordy() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def stripping() -> Tokenizer:
    made = bare(byte_level())
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Strip()])
    return made


def removing() -> Tokenizer:
    made = bare(byte_level())
    made.normalizer = normalizers.Replace("a", "")
    return made


def splitting() -> Tokenizer:
    made = bare(byte_level())
    split = pre_tokenizers.Split(" ", "removed")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


@pytest.mark.parametrize(
    "make", [byte_level, metaspace, prepending, wordy, stripping, removing, splitting]
)
def test_where_a_token_may_stand_for_anything_there_is_no_longest(make: object) -> None:
    assert callable(make)
    assert token_bytes(make()) is None
