"""Vocabularies of one token for each byte, and one for each marker."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.engine.model.detokenizer import Vocabulary

END = "<|im_end|>"
MERGED = (">\n", "->", ">>")
"""Tokens of several characters that contain the last one of many markers."""


def byte_tokenizer(markers: Sequence[str] = (), merged: Sequence[str] = ()) -> Tokenizer:
    """`merged` are tokens of text that no text is spelled with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(text.replace("\n", "Ċ") for text in merged)]
    tokenizer = Tokenizer(models.BPE({text: at for at, text in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in markers])
    return tokenizer


def byte_vocabulary(markers: Sequence[str] = (), merged: Sequence[str] = ()) -> Vocabulary:
    return Vocabulary(byte_tokenizer(markers, merged))
