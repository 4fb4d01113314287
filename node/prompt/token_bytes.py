"""Bounds the number of bytes of text that one token of a tokenizer can stand for."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

COMPOSED = 3
"""Most bytes, relative to a composed character, of the sequence that it is composed of."""

_COMPOSING = ("NFC", "NFKC")
_HARMLESS = ("NFD", "NFKD", "Prepend", "ByteLevel")
"""Normalizers that remove no characters."""
_KEEPING = ("ByteLevel", "Metaspace", "Digits")
"""Pre-tokenizers that remove no characters."""
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Byte lengths of one tokenizer's tokens."""

    longest: int
    """Most UTF-8 bytes in one token."""
    dropped: bytes = b""
    """Bytes that the tokenizer drops from texts, since no token spells them."""

    def least_tokens(self, text: str) -> int:
        """Returns a lower bound of the text's number of tokens."""
        data = text.encode("utf-8", "surrogatepass")
        size_bytes = len(data.translate(None, self.dropped)) if self.dropped else len(data)
        return -(-size_bytes // self.longest)


def token_bytes(backend: Any) -> TokenBytes | None:
    """Returns the byte lengths of a `tokenizers.Tokenizer`. None if a token may stand for a text of
    any length: for all surrounding space, or for an unknown text."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    factor = _factor(_steps(backend.normalizer, "normalizers"))
    splits = _steps(backend.pre_tokenizer, "pretokenizers")
    if factor is None or not all(map(_keeps_text, splits)):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    longest = max((len(token.content.encode()) for token in added), default=1)
    if any(step["type"] == "ByteLevel" for step in splits):
        # Each of its characters stands for a byte.
        longest = max(longest, *map(len, vocabulary))
        return TokenBytes(factor * longest, _silent(vocabulary))
    if not _spells_bytes(backend.model, vocabulary):
        return None
    spelled = (len(token.replace(_SPACE, " ").encode()) for token in vocabulary)
    return TokenBytes(factor * max(longest, *spelled))


def _steps(stage: Any, plural: str) -> list[dict[str, Any]]:
    """Returns the saved steps of a normalizer or a pre-tokenizer."""
    if stage is None:
        return []
    saved = json.loads(stage.__getstate__())
    steps: list[dict[str, Any]] = saved[plural] if saved["type"] == "Sequence" else [saved]
    return steps


def _factor(normalizers: list[dict[str, Any]]) -> int | None:
    """Returns the factor by which a text may be longer than its normalized form; None if
    unbounded."""
    factor = 1
    for step in normalizers:
        if step["type"] in _COMPOSING:
            factor = COMPOSED
        elif step["type"] == "Replace":
            if step["pattern"] != {"String": " "} or step["content"] != _SPACE:
                return None
        elif step["type"] not in _HARMLESS:
            return None
    return factor


def _keeps_text(step: dict[str, Any]) -> bool:
    if step["type"] in ("Split", "Punctuation"):
        return bool(step["behavior"] != "Removed")
    return step["type"] in _KEEPING


def _silent(vocabulary: Collection[str]) -> bytes:
    """Returns the bytes that a byte-level vocabulary lacks."""
    return bytes(sorted(number for number, name in _byte_names() if name not in vocabulary))


def _byte_names() -> list[tuple[int, str]]:
    """Returns each byte with its character, as GPT-2's encoder pairs them: printable bytes stand
    for themselves, the others in order for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [number for number in range(0x100) if number not in printable]
    shown = [(number, chr(number)) for number in printable]
    return shown + [(number, chr(0x100 + at)) for at, number in enumerate(others)]


def _spells_bytes(model: Any, vocabulary: Collection[str]) -> bool:
    """True if text without a token of its own is spelled in byte tokens."""
    names = (f"<0x{number:02X}>" for number in range(0x100))
    return bool(getattr(model, "byte_fallback", False)) and all(
        name in vocabulary for name in names
    )
