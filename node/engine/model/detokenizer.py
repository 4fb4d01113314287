"""Converts output tokens to text, one by one, without incomplete characters.

`Vocabulary` belongs to a model and opens one `Detokenizer` per row. The pieces of a row together
are the text that decoding prompt and output at once adds to the prompt's text, special tokens
skipped: a leading space is kept.
"""

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer

_PROMPT_TAIL = 4
"""Prompt tokens that a window begins with, so that its decoder is past the start of the text."""
_SEARCHED_TAIL = 64
_LONGEST_CHARACTER_BYTES = 4
"""Tokens of one byte each that an incomplete UTF-8 character can span."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SPELLED = 1 << 15
"""Size of the cache of spelled tokens."""
_SEARCHED_IDS = 4096
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """The text of one row."""

    @property
    def has_partial_utf8(self) -> bool:
        """True while tokens wait for the rest of a character."""

    def step(self, token: int) -> str:
        """Returns the text that the token completes; empty while a character is incomplete."""

    def flush(self) -> str:
        """Returns the remaining text at the end; an incomplete character becomes a replacement
        character."""


class AddedToken(NamedTuple):
    """A token outside the base vocabulary."""

    text: str
    special: bool
    """True if it never appears in the text of an output."""


class Vocabulary:
    """Opens the detokenizers of one tokenizer. Unknown ids yield no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spec = json.loads(tokenizer.to_str())
        self.added: dict[int, AddedToken] = {
            entry["id"]: AddedToken(entry["content"], entry["special"])
            for entry in spec["added_tokens"]
        }
        """By id."""
        self.added_texts = frozenset(token.text for token in self.added.values())
        self._special = frozenset(number for number, token in self.added.items() if token.special)
        decoder = spec["decoder"] or {}
        self._pieces: list[bytes] | None = None
        if decoder.get("type") == "ByteLevel":
            self._pieces = _byte_pieces(tokenizer, self._special)
        self._has_byte_tokens = "ByteFallback" in _decoder_types(decoder)
        self._letter: int | None = None
        """A token that is a word of its own, if the vocabulary has one."""
        self.spelled = lru_cache(_SPELLED)(self._spell)
        """Returns text and bytes of one token within a text; empty for an unknown id."""

    @property
    def size(self) -> int:
        """Highest id plus one."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def tokenizer_json(self) -> str:
        """Returns the tokenizer in the format of tokenizer.json."""
        return self._tokenizer.to_str()

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the tokens of a text; the spelling of an added token becomes that token."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def open(self, prompt: Sequence[int]) -> Detokenizer:
        """Returns a detokenizer for the output that follows the prompt."""
        if self._pieces is not None:
            return _ByteLevel(self._pieces)
        text_tokens = [token for token in prompt[-_SEARCHED_TAIL:] if token not in self._special]
        return _Window(self._tokenizer, self._special, text_tokens[-_PROMPT_TAIL:])

    def _spell(self, token: int) -> tuple[str, bytes]:
        added = self.added.get(token)
        if added is not None:
            return added.text, added.text.encode()
        data = self._bytes(token)
        return data.decode("utf-8", "replace"), data

    def _bytes(self, token: int) -> bytes:
        if self._pieces is not None:
            return self._pieces[token] if token < len(self._pieces) else b""
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return b""
        byte = _BYTE_TOKEN.fullmatch(name) if self._has_byte_tokens else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        # Behind a word, since a decoder may drop the space that a text begins with.
        if self._letter is None:
            self._letter = self._find_letter()
        before = self._tokenizer.decode([self._letter])
        text = self._tokenizer.decode([self._letter, token])
        return (text[len(before) :] if text.startswith(before) else name).encode()

    def _find_letter(self) -> int:
        """Returns a token that consists of letters; any token if there is none."""
        ids = [self._tokenizer.token_to_id("a"), *range(_SEARCHED_IDS)]
        known = (each for each in ids if each is not None and each not in self.added)
        return next((each for each in known if self._tokenizer.decode([each]).isalpha()), 0)


class _ByteLevel:
    """For byte-level vocabularies: a table of bytes, with one look-up per token."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def has_partial_utf8(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def step(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token]) if token < len(self._pieces) else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Window:
    """For any other decoder: decodes the last piece with the tokens that follow it, and
    compares."""

    def __init__(
        self, tokenizer: Tokenizer, special: frozenset[int], prompt_tail: list[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._before = prompt_tail
        self._pending: list[int] = []

    @property
    def has_partial_utf8(self) -> bool:
        return bool(self._pending)

    def step(self, token: int) -> str:
        if token in self._special:
            return ""
        self._pending.append(token)
        text = self._added()
        partial = text.endswith(_REPLACEMENT) and len(self._pending) < _LONGEST_CHARACTER_BYTES
        if partial or not text:
            return ""
        self._before, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        text = self._added()
        self._pending = []
        return text

    def _added(self) -> str:
        """Returns the text that the pending tokens add."""
        before = self._decode(self._before)
        whole = self._decode(self._before + self._pending)
        if whole.startswith(before):
            return whole[len(before) :]
        # A decoder that fuses bytes may retract a character once an invalid byte follows.
        return self._decode(self._pending)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _decoder_types(decoder: dict[str, Any]) -> set[str]:
    """Returns the types of a decoder, and of its members if it is a sequence."""
    return {decoder.get("type", ""), *(each["type"] for each in decoder.get("decoders", ()))}


def _byte_pieces(tokenizer: Tokenizer, special: frozenset[int]) -> list[bytes]:
    """Returns the bytes of each id; empty for special tokens and for ids that are not in the
    vocabulary."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    alphabet = _byte_alphabet()
    for token, number in vocabulary.items():
        if number in special:
            continue
        try:
            pieces[number] = token.translate(alphabet).encode("latin-1")
        except UnicodeEncodeError:
            pieces[number] = token.encode()
    return pieces


def _byte_alphabet() -> dict[int, int]:
    """Returns the byte of each character of the byte-level alphabet: visible Latin-1 characters map
    to themselves, every other byte to the next free character from U+0100 on. Latin-1 characters
    outside the alphabet map to 0x100, which is no byte."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(0x100) if byte not in visible]
    shifted = {0x100 + index: byte for index, byte in enumerate(hidden)}
    return {byte: byte for byte in visible} | dict.fromkeys(hidden, 0x100) | shifted
