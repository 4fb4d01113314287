"""How many bytes of a text one token of a tokeniser can stand for."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

COMPOSED = 3
"""Times the bytes of a composed character that what it is composed of may have."""

_COMPOSING = ("NFC", "NFKC")
_HARMLESS = ("NFD", "NFKD", "Prepend", "ByteLevel")
"""Normalizers that take no characters away."""
_KEEPING = ("ByteLevel", "Metaspace", "Digits")
"""Pre-tokenizers that take no characters away."""
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What the tokens of one tokeniser stand for."""

    longest: int
    """Most bytes of UTF-8 in one token."""
    silent: bytes = b""
    """Bytes that it leaves out of texts, since no token spells them."""

    def least_tokens(self, text: str) -> int:
        """No fewer tokens than that has the text."""
        data = text.encode("utf-8", "surrogatepass")
        size_bytes = len(data.translate(None, self.silent)) if self.silent else len(data)
        return -(-size_bytes // self.longest)


def token_bytes(backend: Any) -> TokenBytes | None:
    """Of a `tokenizers.Tokenizer`. None where a token may stand for a text of any length: for all
    the space around it, or for whatever the tokeniser does not know."""
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
    """Of a normalizer or a pre-tokenizer, as they are saved."""
    if stage is None:
        return []
    saved = json.loads(stage.__getstate__())
    steps: list[dict[str, Any]] = saved[plural] if saved["type"] == "Sequence" else [saved]
    return steps


def _factor(normalizers: list[dict[str, Any]]) -> int | None:
    """How many times longer a text may be than what is made of it; None for any number."""
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
    """Bytes that a byte-level vocabulary lacks."""
    return bytes(sorted(number for number, name in _byte_names() if name not in vocabulary))


def _byte_names() -> list[tuple[int, str]]:
    """Each byte and the character for it, as GPT-2's encoder pairs them: printable ones stand for
    themselves, the others in their order for those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [number for number in range(0x100) if number not in printable]
    shown = [(number, chr(number)) for number in printable]
    return shown + [(number, chr(0x100 + at)) for at, number in enumerate(others)]


def _spells_bytes(model: Any, vocabulary: Collection[str]) -> bool:
    """Whether what is in no token is spelled in bytes."""
    names = (f"<0x{number:02X}>" for number in range(0x100))
    return bool(getattr(model, "byte_fallback", False)) and all(
        name in vocabulary for name in names
    )
