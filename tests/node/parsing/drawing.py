"""Outputs drawn at random from a grammar, as a model without any sense would generate them.

The vocabulary has a token for each byte, and one for each marker.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from node.ipc.generate import OutputFormat
from node.ipc.messages import Part
from node.parsing.constraints.lark import Lark
from node.parsing.output_parser import OutputParser

END = "<|end-of-text|>"
_CLOSING = frozenset(b'"}]>)\n')
_SPACE = frozenset(b" \t\n")
_WORDS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789 ")

Piece = tuple[str | bytes, bool]
"""(a marker's text, True) or (bytes, False)."""


class Drawer:
    """Draws outputs over a vocabulary of bytes and `markers`."""

    def __init__(self, markers: Sequence[str] = ()) -> None:
        self.markers = tuple(markers)
        self.tokens = {text: 256 + at for at, text in enumerate((*markers, END))}
        self._tokenizer = _tokenizer(self.markers)

    def lark(self) -> Lark:
        return Lark({text: number for text, number in self.tokens.items() if text != END})

    def error(self, grammar: str) -> str:
        """Returns the library's reason to reject the grammar; empty where it accepts it."""
        return str(
            LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), self._tokenizer)
        )

    def draw(self, grammar: str, seed: int, most: int = 4000) -> list[Piece] | None:
        """Pieces of one output; None where it was not at its end after `most` tokens. Fails where
        the grammar leads nowhere."""
        source = random.Random(seed)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        pieces: list[Piece] = []
        texts = {number: text for text, number in self.tokens.items()}
        for _ in range(most):
            token = _pick(matcher, source)
            if token == self.tokens[END]:
                return pieces
            pieces.append((texts[token], True) if token >= 256 else (_byte(token), False))
            assert matcher.consume_token(token), matcher.get_error()
        return None

    def cut(self, text: str) -> list[Piece]:
        """The text as pieces."""
        pattern = "|".join(map(re.escape, sorted(self.markers, key=len, reverse=True)))
        cuts = re.split(f"({pattern})", text) if pattern else [text]
        pieces: list[Piece] = []
        for each in cuts:
            if each in self.markers:
                pieces.append((each, True))
            else:
                pieces.extend((bytes([byte]), False) for byte in each.encode())
        return pieces

    def takes(self, grammar: str, pieces: Sequence[Piece]) -> bool:
        """Returns True if an output of these pieces is one of the grammar, at its end."""
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        for piece, is_marker in pieces:
            token = self.tokens[str(piece)] if is_marker else bytes(piece)[0]  # type: ignore[arg-type]
            if not _allows(matcher, token) or not matcher.consume_token(token):
                return False
        return bool(matcher.is_accepting())

    def parts(self, output: OutputFormat, pieces: Sequence[Piece]) -> list[Part]:
        """The parts that the output parser makes of them."""
        machine = OutputParser(output, (), frozenset(self.markers), "u")
        parts: list[Part] = []
        buffered = b""
        for piece, is_marker in pieces:
            if machine.ended:
                break
            if is_marker:
                parts += machine.feed_token(str(piece), special=True)
                continue
            buffered += bytes(piece)  # type: ignore[arg-type]
            try:
                text = buffered.decode()
            except UnicodeDecodeError:
                continue
            buffered = b""
            parts += machine.feed(text)
        return parts + machine.finish()


def text_of(pieces: Sequence[Piece]) -> str:
    """The output as it would be printed."""
    data = b"".join(piece.encode() if isinstance(piece, str) else piece for piece, _ in pieces)
    return data.decode("utf-8", "replace")


def _allows(matcher: Any, token: int) -> bool:
    bits = matcher.compute_bitmask()
    return bool(bits[token // 8] >> (token % 8) & 1)


def _pick(matcher: Any, source: random.Random) -> int:
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    allowed: list[int] = np.nonzero(np.unpackbits(bits, bitorder="little"))[0].tolist()
    assert allowed, "the grammar leads nowhere"
    if len(allowed) == 1:
        return int(allowed[0])
    if allowed[-1] >= 256 and source.random() < 0.5:
        return int(source.choice([token for token in allowed if token >= 256]))
    rarely = source.random()
    if rarely < 0.3:
        closing = [token for token in allowed if token in _CLOSING]
        if closing:
            return source.choice(closing)
    elif rarely < 0.9:
        words = [token for token in allowed if token in _WORDS]
        if words:
            return source.choice(words)
    visible = [token for token in allowed if token not in _SPACE]
    return source.choice(visible if visible and source.random() < 0.8 else allowed)


@lru_cache(maxsize=1)
def _alphabet() -> tuple[str, ...]:
    """Byte-level characters, by token."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    shifted = {byte: chr(0x100 + at) for at, byte in enumerate(hidden)}
    return tuple(shifted.get(byte, chr(byte)) for byte in range(256))


def _byte(token: int) -> bytes:
    return bytes([token])


@lru_cache(maxsize=64)
def _tokenizer(markers: tuple[str, ...]) -> Any:
    vocabulary = {character: byte for byte, character in enumerate(_alphabet())}
    added = [
        {
            "id": 256 + at,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for at, text in enumerate((*markers, END))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return LLTokenizer(json.dumps(spec), n_vocab=257 + len(markers), eos_token=[256 + len(markers)])


Spell = Callable[[Lark], str]
"""Gives the expression of the start."""


def outputs(markers: Sequence[str], spell: Spell, seeds: range) -> list[tuple[Drawer, list[Piece]]]:
    """The outputs that end, of one grammar."""
    drawer = Drawer(markers)
    lark = drawer.lark()
    grammar = lark.grammar(spell(lark))
    assert not drawer.error(grammar), drawer.error(grammar)
    drawn = [drawer.draw(grammar, seed) for seed in seeds]
    return [(drawer, pieces) for pieces in drawn if pieces is not None]
