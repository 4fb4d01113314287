"""Text from tokens: whole characters, leading spaces, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from node.engine.model.detokenizer import Vocabulary

LINES = ["the cat sat on the mat", "a dog; the dog, the naïve dog — 猫", "ünï 😀 cödé 日本語"] * 3
TORN = "\N{REPLACEMENT CHARACTER}"


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think> é", special=False)])
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """Llama's shape: spaces as a block character, unknown characters as bytes."""
    words = ["▁the", "▁cat", "▁sat", "▁", "t", "h", "e", "c", "a", "s", "d", "o", "g", "▁dog"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    vocab |= {
        a + b: len(vocab) + index for index, (a, b) in enumerate(merges) if a + b not in vocab
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


BYTE_LEVEL, SENTENCEPIECE = _byte_level(), _sentencepiece()
KINDS = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["bytes", "pieces"])


def pieces(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> list[str]:
    detokenizer = Vocabulary(tokenizer).open(prompt)
    return [*(detokenizer.step(token) for token in output), detokenizer.flush()]


@KINDS
@pytest.mark.parametrize(
    "text", ["the cat", " the cat sat", "  the", "naïve 😀 日本語", "", "a\n\nb\n", "é", "猫" * 5]
)
def test_equals_the_decoding_of_the_whole(tokenizer: Tokenizer, text: str) -> None:
    prompt = tokenizer.encode("the dog").ids
    output = tokenizer.encode("x" + text, add_special_tokens=False).ids
    whole = tokenizer.decode(prompt + output)
    streamed = pieces(tokenizer, prompt, output)
    assert tokenizer.decode(prompt) + "".join(streamed) == whole
    assert not any(TORN in piece for piece in streamed)


@KINDS
def test_keeps_the_leading_space_of_the_output(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("the dog").ids
    output = tokenizer.encode("dog the cat").ids[len(tokenizer.encode("dog").ids) :]
    assert "".join(pieces(tokenizer, prompt, output)) == " the cat"


@KINDS
def test_a_character_that_stays_incomplete_is_replaced_at_the_end(tokenizer: Tokenizer) -> None:
    emoji = tokenizer.encode("the😀", add_special_tokens=False).ids
    streamed = pieces(tokenizer, emoji[:1], emoji[1:-1])
    assert set("".join(streamed[:-1])) <= set("the")
    assert set(streamed[-1]) == {TORN}


@KINDS
def test_an_invalid_byte_does_not_delay_what_follows(tokenizer: Tokenizer) -> None:
    torn = tokenizer.encode("😀", add_special_tokens=False).ids[-1]
    after = tokenizer.encode("cat", add_special_tokens=False).ids
    streamed = pieces(tokenizer, [], [torn] * 20 + after)
    assert streamed[-1] == ""
    assert "".join(streamed).endswith("cat")
    assert any(streamed[:10])


@KINDS
def test_special_and_unknown_ids_yield_no_text(tokenizer: Tokenizer) -> None:
    special = next(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    text = tokenizer.encode("the cat", add_special_tokens=False).ids
    output = [special, text[0], special, 99_999, special, special, *text[1:], 99_999]
    assert "".join(pieces(tokenizer, text, output)).strip() == "the cat"


def test_added_tokens_outside_the_byte_alphabet_are_their_own_text() -> None:
    added = BYTE_LEVEL.token_to_id("<think> é")
    assert added is not None
    assert "".join(pieces(BYTE_LEVEL, [], [added])) == "<think> é"


@given(st.lists(st.integers(0, 289), max_size=30))
def test_any_bytes_decode_as_the_whole_does(output: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, [], output)) == BYTE_LEVEL.decode(output)
